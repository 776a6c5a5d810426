"""What is remembered of requests: explanations, the log, metrics."""
