"""Compares a model with the one it was made from."""
