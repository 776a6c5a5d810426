"""Refusals of connections have codes that are counted from 0 on."""

from __future__ import annotations

from deployments.gateway.record.process_metrics import ProcessMetrics
from deployments.process import connection_refusals as refusals
from observability.metrics.families import Families

EVERY = (
    refusals.head_too_large(1),
    refusals.too_many_headers(1),
    refusals.too_many_pipelined(1),
    refusals.ambiguous("1.0", [(b"transfer-encoding", b"chunked")]),
    refusals.ambiguous("1.1", []),
    refusals.head_timeout(1.0),
    refusals.body_too_slow(1.0, 1.0),
    refusals.too_many_connections(1),
    refusals.NOT_HTTP,
)


def test_every_refusal_code_is_listed() -> None:
    assert {refusal.error for refusal in EVERY if refusal} == set(refusals.CODES)


def test_counters_of_refused_connections_start_at_0() -> None:
    families = Families()
    ProcessMetrics(families)
    (metric,) = families.connections_rejected.collect()
    shown = {tuple(sample.labels.values()) for sample in metric.samples}
    assert shown >= {(code.name,) for code in refusals.CODES}
