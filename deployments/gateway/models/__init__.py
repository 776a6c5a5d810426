"""Names of models: the pool of each conversation, canaries, and loaded adapters."""
