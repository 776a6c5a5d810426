"""Modules that import vLLM, or depend on the internals of one release."""
