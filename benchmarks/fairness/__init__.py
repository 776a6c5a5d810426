"""What one tenant's flood costs another."""
