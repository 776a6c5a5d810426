"""Measures vLLM's steps, tokens and speculation."""
