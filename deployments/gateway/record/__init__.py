"""Records of requests: explanations, the log, metrics."""
