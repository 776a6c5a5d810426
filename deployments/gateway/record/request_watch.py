"""What a gateway counts, logs and explains of its requests; none of it may cost an answer.

Every request that has a valid API key ends in `RequestWatch.ended`, once, however it went.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from deployments.fleet.pool import Pool
from deployments.gateway.record.explanations import Explanations
from deployments.gateway.record.request_log import log_request
from observability.request_metrics import Prices, Promise, RequestMetrics
from observability.request_record import CLIENT_LEFT, RequestRecord

logger = logging.getLogger("ray.serve")


class AnyWatch(Protocol):
    """Who is told of one request's first token and end."""

    def first_token(self, record: RequestRecord) -> None: ...

    def ended(self, record: RequestRecord) -> None: ...


class RequestWatch:
    """Follows a request from its arrival over its first token to its end; never raises."""

    def __init__(
        self,
        metrics: RequestMetrics,
        explanations: Explanations,
        *settle: Callable[[RequestRecord], None],
    ) -> None:
        self._metrics = metrics
        self._explanations = explanations
        self._settle = settle

    def begun(self, record: RequestRecord) -> None:
        self._metrics.begun(record)
        self._explanations.begun(record)

    def first_token(self, record: RequestRecord) -> None:
        try:
            self._metrics.first_token(record)
        except Exception:
            logger.exception("the first token of request %s is not counted", record.request_id)

    def ended(self, record: RequestRecord) -> None:
        """However it went; also of one that was refused before its pool was known."""
        ended_at = record.left_at or asyncio.get_running_loop().time()
        record.duration_s = ended_at - record.arrived
        if record.outcome == "cancelled":
            record.status = record.status or CLIENT_LEFT
        explain = self._explanations.ended
        # each by itself: a line that cannot be written must leave no span open
        for tell in (*self._settle, self._metrics.ended, log_request, record.trace.ended, explain):
            try:
                tell(record)
            except Exception:
                logger.exception("request %s is not fully reported", record.request_id)


def promise_of(pool: Pool) -> Promise:
    """What a pool's requests are counted against."""
    objectives = {
        name: {
            objective: seconds
            for objective, seconds in (
                ("ttft", slo.ttft_s),
                ("ttft_p50", slo.ttft_p50_s),
                ("tpot", slo.tpot_s),
                ("e2e", slo.e2e_s),
            )
            if seconds is not None
        }
        for name, slo in (("interactive", pool.slo.interactive), ("batch", pool.slo.batch))
        if slo is not None
    }
    price, prices = pool.price, None
    if price is not None:
        cached = price.prompt if price.cached is None else price.cached
        prices = Prices(price.prompt, cached, price.output)
    return Promise(objectives, prices, pool.slo.throughput)
