"""Detects a hung engine, and reports why a replica ended."""
