"""What a gateway's process counts from its start, as metrics, and what the autoscaler reports."""

from __future__ import annotations

from collections.abc import Iterable

from common.loops import failures
from deployments.process import http_connection
from deployments.process.connection_refusals import CODES
from observability.families import Families
from observability.metrics import ProcessCounts
from router.demand import Decided
from router.signature import forged


class ProcessMetrics:
    """Of one gateway process. `refresh` brings its metrics up to date."""

    def __init__(self, families: Families) -> None:
        self._loops = ProcessCounts(families.loop_failures)
        self._connections_refused = ProcessCounts(families.connections_refused)
        self._connections_refused.own(dict.fromkeys(CODES, 0))
        self._forged = ProcessCounts(families.shared.redis_forged)

    def refresh(self, decided: Iterable[Decided]) -> None:
        """`decided`: the last word of each pool's autoscaler; all are in one process."""
        self._loops.own(failures)
        self._connections_refused.own(http_connection.refused)
        self._forged.own(forged)
        if known := list(decided):
            self._loops.heard("autoscaler", max(one.failures for one in known))
            self._forged.heard("autoscaler", max(one.forged for one in known))
