"""A release in a cluster: status, diff, acceptance."""
