"""What is tried on a real Ray Serve, without an engine of vLLM."""
