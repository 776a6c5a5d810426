"""Predicted time to first token: the one currency of every decision."""

from __future__ import annotations

from router.load import ReplicaLoad


def predict_ttft(load: ReplicaLoad, prompt_tokens: int, cached_tokens: int = 0) -> float:
    """Seconds until a prompt placed on this replica now would get its first token.

    The prompts ahead of it and what is not cached of its own are prefilled at the replica's
    learned rate, after the engine step that is under way.
    """
    tokens = load.queued_prefill_tokens + max(0, prompt_tokens - cached_tokens)
    return tokens / load.prefill_rate + load.inter_token_latency
