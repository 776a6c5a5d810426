"""Sizes replicas and fleets for a load."""
