"""The sections of a fleet file, and their rules."""
