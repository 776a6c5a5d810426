"""Changes of vLLM's engine."""
