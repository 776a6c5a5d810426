"""`antefix`: one module per command. `local/` runs a fleet on this machine."""
