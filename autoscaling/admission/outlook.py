"""One replica from the view of one request, and whether it meets the objectives.

Functions of predictions; seconds, of any one clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from autoscaling.slo import Slo

# A replica where a new request waits longer than this has no room for another tenant's turn. The
# time keeps an engine busy until a gateway knows that it is free, and is short compared with a
# prefill.
ENGINE_QUEUE_S = 0.02
# The largest doubt. With a larger one, a prediction says nothing and would close the pool.
MAX_DOUBT = 0.5


class Outlook(Protocol):
    """One replica from the view of one request: `router.choice.policies.Candidate` is one. Seconds.

    `wait_s`: before its own prefill, uncorrected; exactly 0 without a queue.
    """

    @property
    def predicted_ttft_s(self) -> float: ...
    @property
    def wait_s(self) -> float: ...
    @property
    def inter_token_latency(self) -> float: ...
    @property
    def running(self) -> int: ...


def doubted(slo: Slo, doubt: float) -> Slo:
    """Return the SLO that a prediction must meet so that the SLO is met with an error of
    `doubt`."""
    doubt = min(max(0.0, doubt), MAX_DOUBT) if math.isfinite(doubt) else MAX_DOUBT
    return replace(slo, ttft_s=slo.ttft_s / (1.0 + doubt))


def first_holding(ranked: Sequence[Outlook], slo: Slo, elapsed_s: float) -> int | None:
    """Return the first replica in the policy's order that meets the SLO."""
    holding = (i for i, candidate in enumerate(ranked) if holds(candidate, slo, elapsed_s))
    return next(holding, None)


def has_room(candidate: Outlook) -> bool:
    return candidate.wait_s <= ENGINE_QUEUE_S


def is_slow(candidate: Outlook, slo: Slo | None) -> bool:
    """Return whether its running streams miss their TPOT."""
    if slo is None or slo.tpot_s is None or not candidate.running:
        return False
    return candidate.inter_token_latency > slo.tpot_s


def holds(candidate: Outlook, slo: Slo, elapsed_s: float) -> bool:
    if is_slow(candidate, slo):
        return False
    return candidate.wait_s <= 0.0 or candidate.predicted_ttft_s + elapsed_s <= slo.ttft_s


def pressure(ranked: Sequence[Outlook], slo: Slo, elapsed_s: float) -> float:
    """Return the load of the least used replica, as a multiple of what the SLO allows."""

    def of(candidate: Outlook) -> float:
        ttft = 0.0
        if candidate.wait_s > 0.0:
            ttft = (candidate.predicted_ttft_s + elapsed_s) / slo.ttft_s
        if slo.tpot_s is None or not candidate.running:
            return ttft
        return max(ttft, candidate.inter_token_latency / slo.tpot_s)

    return min(map(of, ranked))
