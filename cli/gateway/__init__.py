"""Subcommands that talk to a running gateway."""
