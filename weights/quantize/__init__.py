"""Quantizes a model."""
