"""Modules that every package may use. They know nothing of Antefix."""
