"""Sizes and shapes of constraints on an answer."""
