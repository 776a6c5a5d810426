"""Compiles and follows constraints before the engine does."""
