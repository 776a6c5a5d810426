"""How right predicted times to first token are."""
