"""A gateway's metrics of mirrors: copies of requests for another pool."""

from __future__ import annotations

from dataclasses import dataclass

from observability.families import Families


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

    def ended(self, model: str, outcome: str) -> None:
        """Count a copy, or that there was none."""
        self._copies.labels(model, outcome).inc()

    def compare(self, model: str, original: MirroredAnswer, copy: MirroredAnswer) -> None:
        """Record the copy's facts as shares of the original's."""
        for of, of_copy, of_original in (
            ("ttft", copy.ttft_s, original.ttft_s),
            ("tpot", copy.tpot_s, original.tpot_s),
            ("tokens", copy.tokens, original.tokens),
        ):
            if of_copy is not None and of_original:
                self._ratio.labels(model, of).observe(of_copy / of_original)
