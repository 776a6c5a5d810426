"""Input: API keys, bodies, a request's options, and the errors that it may get."""
