"""The counters that alerts read exist before anything is counted: a first event is an increase."""

from __future__ import annotations

import logging
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from common.loops import Trouble
from deployments.gateway.record.process_metrics import ProcessMetrics
from observability.alerts.rules import POOL_RECORDS
from observability.alerts.slo_file import load
from observability.metrics.families import Families
from observability.metrics.metrics import ReplicaMetrics, RoutingMetrics
from observability.metrics.request_metrics import Promise, RequestMetrics

logger = logging.getLogger(__name__)

OBJECTIVES = {"ttft": 1.0, "ttft_p50": 1.0, "tpot": 1.0, "e2e": 1.0}
COUNTED = re.compile(r"\b(antefix_\w+)(?:\{([^}]*)\})?\[")


def fresh() -> list[Sample]:
    """What a gateway with one pool, and a replica, expose before their first request."""
    families, replica = Families(), CollectorRegistry()
    ReplicaMetrics(1.0, None, replica)
    RoutingMetrics(families, "a").begin_tiers(peers=True, prefill=True)
    RequestMetrics(families, {"a": Promise({"interactive": OBJECTIVES})})
    Trouble("a_loop", "reading fails", logger)
    ProcessMetrics(families).refresh([])
    return [
        sample
        for registry in (families.registry, replica)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]


def selected() -> set[tuple[str, str]]:
    """Each name and matchers of a range of samples in the shipped alerts and records."""
    slo_file = load()
    queries = [slo.sli.events.error_query for slo in slo_file.slos]
    queries += [level.query for level in slo_file.levels]
    queries += POOL_RECORDS.values()
    return {found for query in queries for found in COUNTED.findall(query)}


def matches(sample: Sample, name: str, matchers: str) -> bool:
    wanted = re.findall(r'(\w+)="([^"]*)"', matchers)
    return sample.name == name and all(sample.labels.get(key) == value for key, value in wanted)


@pytest.mark.parametrize(("name", "matchers"), sorted(selected()))
def test_a_counter_that_alerts_read_begins_at_zero(name: str, matchers: str) -> None:
    assert [sample for sample in fresh() if matches(sample, name, matchers)]


def test_alerts_read_counters() -> None:
    assert len(selected()) > 8
