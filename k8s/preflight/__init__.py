"""Findings of `antefix k8s preflight`."""
