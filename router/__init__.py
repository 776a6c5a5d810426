"""Deciding which replica serves a request: loads in, a ranked `Placement` out."""
