"""A gateway's metrics of canaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

from observability.metrics.families import Families


@dataclass(frozen=True)
class CanaryReading:
    """`share`: the canary's, of new conversations, 0 to 1."""

    share: float
    is_aborted: bool


class CanaryMetrics:
    """Metrics of one gateway."""

    def __init__(self, families: Families) -> None:
        self._shared = families.shared
        self._models: frozenset[str] = frozenset()

    def refresh(self, canaries: Mapping[str, CanaryReading]) -> None:
        """Update the gauges, by model."""
        # a series cannot be removed while other processes share its file
        for model in self._models - canaries.keys():
            self._shared.canary_share.labels(model).set(nan)
            self._shared.canary_aborted.labels(model).set(nan)
        self._models = frozenset(canaries)
        for model, canary in canaries.items():
            self._shared.canary_share.labels(model).set(canary.share)
            self._shared.canary_aborted.labels(model).set(canary.is_aborted)
