"""The sections of a fleet file, and the rules each must keep."""
