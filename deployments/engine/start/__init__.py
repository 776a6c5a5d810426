"""What a replica checks before its engine starts."""
