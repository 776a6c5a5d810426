"""A vLLM engine without a server, in its own process."""
