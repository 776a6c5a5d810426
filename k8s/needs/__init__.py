"""What a release needs, and what a cluster has."""
