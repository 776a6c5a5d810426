"""Lookups in the prefix index, and its publisher."""
