"""Changes of vLLM's API server."""
