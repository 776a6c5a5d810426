"""Measurements anyone can run: `make bench-*`. Never tests."""
