"""Canaries in virtual time: worse ones are aborted, equal ones are not; and splits of models."""
