"""Hands hot prefixes from replica to replica."""
