"""Public facts of the HTTP API, which the code and docs/api.md share."""
