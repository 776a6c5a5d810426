"""Tiers of the KV cache below the device, on vLLM's OffloadingConnector."""
