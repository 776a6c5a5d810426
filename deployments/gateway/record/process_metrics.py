"""Metrics of counters in a gateway process, and of those that the autoscaler reports."""

from __future__ import annotations

from collections.abc import Iterable

from common.loops import failures
from deployments.process import http_connection
from deployments.process.connection_refusals import CODES
from observability.metrics.families import Families
from observability.metrics.metrics import ProcessCounts
from router.board.pool_demand import Decided
from router.redis.signature import forged


class ProcessMetrics:
    """The counters of one gateway process. `refresh` updates the metrics."""

    def __init__(self, families: Families) -> None:
        self._loops = ProcessCounts(families.loop_failures)
        self._connections_rejected = ProcessCounts(families.connections_rejected)
        self._connections_rejected.own({code.name: 0 for code in CODES})
        self._forged = ProcessCounts(families.shared.redis_forged)

    def refresh(self, decided: Iterable[Decided]) -> None:
        """Update the metrics. `decided`: the autoscaler's last decision for each pool.

        One autoscaler process decides for all pools, so its counters are not added.
        """
        self._loops.own(failures)
        self._connections_rejected.own(http_connection.refused)
        self._forged.own(forged)
        if known := list(decided):
            self._loops.heard("autoscaler", max(decision.failures for decision in known))
            self._forged.heard("autoscaler", max(decision.forged for decision in known))
