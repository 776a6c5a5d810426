"""The routing policies, on real engines."""
