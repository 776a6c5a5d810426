"""What a gateway tells of its requests while they are served: nothing of it may cost an answer."""

from __future__ import annotations

import asyncio
import logging

from deployments.request_log import log_request
from observability.request_metrics import RequestMetrics
from observability.request_record import RequestRecord

logger = logging.getLogger("ray.serve")


class RequestWatch:
    """Is told when a request has come, got its first token and ended; never raises."""

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics

    def begun(self, record: RequestRecord) -> None:
        self._metrics.begun(record)

    def first_token(self, record: RequestRecord) -> None:
        try:
            self._metrics.first_token(record)
        except Exception:
            logger.exception("the first token of request %s is not counted", record.request_id)

    def ended(self, record: RequestRecord) -> None:
        """However it went; also of one that was refused before its pool was known."""
        record.duration_s = asyncio.get_running_loop().time() - record.arrived
        try:
            self._metrics.ended(record)
        except Exception:
            logger.exception("request %s is not counted", record.request_id)
        try:
            log_request(record)
            record.trace.ended(record)
        except Exception:
            logger.exception("request %s is not traced", record.request_id)
