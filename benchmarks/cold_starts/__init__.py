"""How soon an engine that is killed is back."""
