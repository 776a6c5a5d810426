"""KV cache tiers on real engines, and the choice between loading and computing."""
