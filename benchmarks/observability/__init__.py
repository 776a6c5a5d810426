"""What metrics and explanations cost a gateway."""
