"""Records and traces of requests."""
