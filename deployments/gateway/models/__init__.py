"""Names of models: which pool serves a conversation, and how far a canary is."""
