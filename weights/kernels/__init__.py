"""Checks weights against GPUs and engine arguments."""
