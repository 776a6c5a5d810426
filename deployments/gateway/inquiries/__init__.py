"""Endpoints about the gateway and its fleet: status, past requests, profiles and health."""
