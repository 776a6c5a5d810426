"""Load of replicas, and demand of pools, in Redis."""
