"""Keeps GPU nodes warm."""
