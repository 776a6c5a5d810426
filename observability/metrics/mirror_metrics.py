"""A gateway's metrics of mirrors: copies of requests for another pool."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal, get_args

from observability.metrics.families import Families

# As the metric's HELP describes them.
MirrorOutcome = Literal[
    "same", "other_reason", "failed", "invalid", "late", "dropped", "uncompared"
]
# The fields of a MirroredAnswer.
_COMPARED = ("ttft", "tpot", "tokens")


@dataclass(frozen=True)
class MirroredAnswer:
    """One answer: seconds from its placement to its first token and per later token, and its
    tokens; None: unknown."""

    ttft_s: float | None
    tpot_s: float | None
    tokens: int | None


class MirrorMetrics:
    """Metrics of one gateway."""

    def __init__(self, families: Families) -> None:
        self._copies = families.mirrored
        self._ratio = families.mirror_ratio

    def begins(self, model: str) -> None:
        """A model has a mirror: its series begin at 0."""
        for outcome in get_args(MirrorOutcome):
            self._copies.labels(model, outcome)
        for of in _COMPARED:
            self._ratio.labels(model, of)

    def ended(self, model: str, outcome: MirrorOutcome) -> None:
        """Count a copy, or that there was none."""
        self._copies.labels(model, outcome).inc()

    def compare(self, model: str, original: MirroredAnswer, copy: MirroredAnswer) -> None:
        """Record the copy's facts as shares of the original's."""
        for of, of_copy, of_original in zip(
            _COMPARED, astuple(copy), astuple(original), strict=True
        ):
            if of_copy is not None and of_original:
                self._ratio.labels(model, of).observe(of_copy / of_original)
