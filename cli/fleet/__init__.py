"""Subcommands for the fleet on this machine."""
