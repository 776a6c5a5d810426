"""A failure of one report on an ended request affects neither its answer nor the other reports."""

import pytest
from prometheus_client import generate_latest

from deployments.gateway.record import request_watch
from deployments.gateway.record.explanations import Explanations
from deployments.gateway.record.request_watch import RequestWatch
from observability.metrics.families import Families
from observability.metrics.request_metrics import Promise, RequestMetrics
from observability.traces.request_record import AnswerEnd, RequestFacts, RequestRecord, RequestTrace
from router.redis.redis_client import connect
from tests.fakes.front import NO_REDIS, samples_of


class _Trace(RequestTrace):
    has_ended = False

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        self.has_ended = True


async def test_a_line_that_cannot_be_written_leaves_no_span_open_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(record: RequestRecord, end: AnswerEnd) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(request_watch, "log_request", fail)
    families, trace = Families(), _Trace()
    metrics = RequestMetrics(families, {"main": Promise()})
    facts = RequestFacts("id", "tenant", "/v1/completions", pool="main")
    record = RequestRecord(facts, 0.0, trace=trace)
    kept = Explanations(connect(NO_REDIS, decode=False), "fleet")
    RequestWatch(metrics, kept, lambda record, end: None).ended(record, AnswerEnd(1.0))
    metrics.refresh(1.0)
    assert trace.has_ended
    samples = samples_of(generate_latest(families.registry).decode(), "main")
    assert samples["antefix_requests_total", "cancelled", "interactive"] == 1
