"""What a fleet on one machine needs and a cluster brings itself: a model and a Redis."""
