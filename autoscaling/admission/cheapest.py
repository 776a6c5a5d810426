"""Which of a model's pools serves a request, where their accelerators and prices differ. Pure.

The cheapest of those that are predicted to meet its SLO; if none does, the one with the earliest
first token. Each pool predicts by what its own replicas have measured, so a kind of accelerator
needs no description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Reason = Literal["price", "soonest"]


@dataclass(frozen=True)
class PoolOffer:
    """What one pool offers for one request. `predicted_ttft_s`: until its first token, from now,
    its turn included; None: no replica is known. `price`: of the request, in the fleet file's
    currency."""

    pool: str
    predicted_ttft_s: float | None
    holds_slo: bool
    price: float


def cheapest(offers: Sequence[PoolOffer]) -> tuple[int | None, Reason]:
    """Return the index of the chosen pool, and why; None: no replica of any is known."""
    known = [(n, of) for n, of in enumerate(offers) if of.predicted_ttft_s is not None]
    in_time = [(of.price, of.predicted_ttft_s, n) for n, of in known if of.holds_slo]
    if in_time:
        return min(in_time)[-1], "price"
    soonest = min(((of.predicted_ttft_s, n) for n, of in known), default=None)
    return None if soonest is None else soonest[-1], "soonest"
