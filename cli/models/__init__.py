"""Subcommands that plan, quantize, evaluate and tune a model."""
