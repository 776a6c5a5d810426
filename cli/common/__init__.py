"""Shared by subcommands: parsing, output, exit codes, the gateway's client."""
