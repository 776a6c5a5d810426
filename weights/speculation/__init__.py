"""Whether speculation pays, and draft models."""
