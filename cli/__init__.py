"""`antefix`: one module a command; `local/` is what a fleet on this machine needs."""
