"""Counts, logs and explains a gateway's requests. Failures here never affect an answer.

Every request with a valid API key ends in `RequestWatch.ended`, exactly once, with any outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from deployments.fleet.devices import gpu_memory_share
from deployments.fleet.pool import Pool
from deployments.gateway.record.explanations import Explanations
from deployments.gateway.record.request_log import log_request
from observability.metrics.request_metrics import Prices, Promise, RequestMetrics
from observability.traces.request_record import AnswerEnd, RequestRecord

logger = logging.getLogger("ray.serve")


class AnyWatch(Protocol):
    """Receives the events of one request: its first token and its end."""

    def first_token(self, record: RequestRecord) -> None: ...

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None: ...


class RequestWatch:
    """Records a request's arrival, first token and end. Never raises."""

    def __init__(
        self,
        metrics: RequestMetrics,
        explanations: Explanations,
        *settle: Callable[[RequestRecord, AnswerEnd], None],
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
            logger.exception(
                "failed to count the first token of request %s", record.facts.request_id
            )

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        """Record the end of a request, with any outcome, even if its pool is not known yet."""
        explain = self._explanations.ended
        # separately: if a log line cannot be written, the trace's span must still end
        for report in (
            *self._settle,
            self._metrics.ended,
            log_request,
            record.trace.ended,
            explain,
        ):
            try:
                report(record, end)
            except Exception:
                logger.exception("failed to report the end of request %s", record.facts.request_id)


def promise_of(pool: Pool) -> Promise:
    """Return a pool's objectives, prices and share of GPU memory, for its metrics."""
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
    return Promise(objectives, prices, pool.slo.throughput, gpu_memory_share(pool))
