"""The KV cache of a simulated engine, and its tiers."""
