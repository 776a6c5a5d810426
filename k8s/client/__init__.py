"""Clients of Kubernetes."""
