"""One try of a request on one engine."""
