"""Chooses a replica for a request: cost, policies, loss."""
