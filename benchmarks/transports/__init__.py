"""The ways from a gateway to an engine."""
