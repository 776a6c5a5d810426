"""Requests whose times are known."""

from __future__ import annotations

from dataclasses import replace

from loadgen.player import SentRequest


def answered(due_s: float, *token_times_s: float, **more: object) -> SentRequest:
    """Sent when it was due, ended with its last token."""
    made = SentRequest(
        "a", 0, due_s, due_s, token_times_s[-1], 200, token_times_s=tuple(token_times_s)
    )
    return replace(made, **more)  # type: ignore[arg-type]


def failed(due_s: float, ended_s: float, error: str, reason: str = "") -> SentRequest:
    return SentRequest("a", 0, due_s, due_s, ended_s, 0, error, reason)
