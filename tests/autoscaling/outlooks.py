"""Replicas as a request sees them, for tests of admission."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """An `autoscaling.admission.admission.Outlook`: by default one where others wait."""

    predicted_ttft_s: float
    wait_s: float = 0.1
    inter_token_latency: float = 0.0
    running: int = 0


def idle(predicted_ttft_s: float) -> Seen:
    return Seen(predicted_ttft_s, wait_s=0.0)
