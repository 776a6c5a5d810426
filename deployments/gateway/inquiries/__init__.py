"""What a gateway says of itself and its fleet, without an engine."""
