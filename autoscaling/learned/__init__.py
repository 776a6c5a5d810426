"""Rates and times that are learned while an engine runs."""
