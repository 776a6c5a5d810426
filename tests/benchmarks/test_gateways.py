"""What is made of gateways' reports."""

from __future__ import annotations

from benchmarks.gateways.results import (
    GatewayReport,
    GatewaysRun,
    ServedRequest,
    ceiling,
    summary,
)
from benchmarks.stand.arrivals import Arrival, Span
from common.percentiles import Tail

SYSTEM, QUESTION, ANSWER, OTHER = (Span(text, 16) for text in range(4))


def served(replica: str, due: float, cached: int = 0, seconds: float = 1.0) -> ServedRequest:
    return ServedRequest(due, replica, 100, cached, 0, 0.1, 0.0, 0.0, 0.1, due + seconds)


def run(*requests: ServedRequest, replicas: int = 2) -> GatewaysRun:
    reports = (GatewayReport(list(requests), 0, len(requests), 0, 0.0),)
    return GatewaysRun(1, True, replicas, 10.0, 20.0, 0.5, reports, Tail(99, 0.0), 0.0)


def test_the_ceiling_counts_all_that_any_request_before_has_left() -> None:
    turns = [
        Arrival(0.0, (SYSTEM, QUESTION), ANSWER, 0.0),
        Arrival(1.0, (SYSTEM, QUESTION, ANSWER, OTHER), ANSWER, 0.0),
        Arrival(2.0, (SYSTEM, QUESTION), ANSWER, 0.0),
    ]
    # three spans of four; then one of two, for the last token is always computed
    assert ceiling(turns, since=0.5, block_tokens=16) == (48 + 16) / (64 + 32)


def test_only_requests_after_the_warm_up_count() -> None:
    told = summary(run(served("a", 9.9), served("a", 10.0, cached=50), served("b", 11.0)))
    assert told.requests == 2
    assert told.cached_ratio == 0.25
    assert told.variation_requests == 0


def test_requests_in_flight_count_for_as_long_as_they_were_there() -> None:
    told = summary(run(served("a", 9.0, seconds=3.0), served("b", 12.0, seconds=2.0)))
    assert told.variation_in_flight == 0
