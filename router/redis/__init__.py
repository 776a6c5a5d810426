"""Connections, keys and signatures."""
