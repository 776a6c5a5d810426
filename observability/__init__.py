"""What a fleet shows of itself: metrics."""
