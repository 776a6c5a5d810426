"""All that imports vLLM, or depends on how one release of it works inside."""
