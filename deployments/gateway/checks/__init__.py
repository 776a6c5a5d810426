"""Checks that reject requests before they are scheduled."""
