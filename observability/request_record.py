"""What became of one request: gathered on its way, read once at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from observability.tracing import Trace

Outcome = Literal["ok", "invalid", "rejected", "deadline", "failed", "cancelled"]


@dataclass(eq=False)
class RequestRecord:
    """Facts of one request: never its prompt, nor what was answered.

    Times are seconds, `arrived` on the event loop's clock. `pool` is the one that was asked,
    `served_by` the one that answered: another where the request overflowed. `gaps_s` are the
    times between the pieces of a stream. `outcome` is "cancelled" (the client left) until
    something else is known; `error` is the API's code for what went wrong.
    """

    request_id: str
    tenant: str
    path: str
    arrived: float
    model: str = ""
    pool: str = ""
    served_by: str = ""
    priority: str = "interactive"
    verdict: str = ""
    replica_id: str = ""
    ttft_s: float | None = None
    duration_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    gaps_s: list[float] = field(default_factory=list)
    status: int = 0
    outcome: Outcome = "cancelled"
    error: str = ""
    trace: Trace = field(default_factory=Trace)

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for fewer than two."""
        if self.ttft_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return max(0.0, self.duration_s - self.ttft_s) / (self.output_tokens - 1)

    def failed(self, status: int, code: str) -> None:
        """It was answered with an error, or broken off by one."""
        self.error, self.outcome = code, _outcome(status)
        self.status = self.status or status


def _outcome(status: int) -> Outcome:
    if status == 429:
        return "rejected"
    if status == 504:
        return "deadline"
    return "failed" if status >= 500 else "invalid"
