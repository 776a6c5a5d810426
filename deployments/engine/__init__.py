"""One replica process: a vLLM engine behind its own HTTP server, inside a Ray Serve actor."""
