"""The number of replicas."""
