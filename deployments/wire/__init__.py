"""Formats between gateways and replicas, for both ends."""
