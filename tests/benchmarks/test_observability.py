"""What the parts of a gateway that only report are said to cost."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from benchmarks.observability.gateway import PARTS, Parts
from benchmarks.observability.results import (
    BOTH,
    NOTHING,
    VARIANTS,
    MeasuredRound,
    ObservabilityResult,
    Pair,
    cost_of,
    figures,
    goals,
)
from benchmarks.overhead.gateway_cost import a_a
from deployments.gateway.answer.answer_to_client import AnswerToClient
from deployments.gateway.record import request_watch
from deployments.gateway.record.explanations import Explanations
from deployments.wire.headers import RESUMABLE_HEADER
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before

SCRAPES = (0.01, 100)
EVERYTHING = frozenset(PARTS)
EACH = (*(frozenset({part}) for part in PARTS), EVERYTHING)


def pair(cost: float, parts: frozenset[str] = BOTH) -> Pair:
    """On a machine that is twice as slow in half of the pairs."""
    without = MeasuredRound(requests=100, tokens=6400, seconds=2.0, cpu_s=0.4)
    return Pair(parts, without, MeasuredRound(50, 3200, 2.0, 0.2 * (1 + cost)))


def found(*costs: float) -> ObservabilityResult:
    return ObservabilityResult(
        [pair(cost, parts) for parts in VARIANTS for cost in costs], *SCRAPES
    )


def test_a_cost_is_the_median_of_the_pairs_whatever_each_served() -> None:
    cost = cost_of(found(0.01, 0.5, 0.03), BOTH)
    assert cost.share == pytest.approx(0.03)
    assert cost.us_per_request == pytest.approx(0.03 * 4000)
    assert cost.low <= cost.share <= cost.high


def test_two_rounds_of_the_same_are_the_control_of_every_comparison() -> None:
    control = [pair(cost, NOTHING) for cost in (-0.02, 0.01, 0.03)]
    others = [of for of in found(0.02).pairs if of.parts != NOTHING]
    run = ObservabilityResult([*control, *others], *SCRAPES)
    assert figures(run)["cost_share"]["A/A"] == 0.01
    assert goals(run) == goals(found(0.02))


def test_the_cpu_of_a_request_is_reported_with_a_repeat_of_the_request() -> None:
    told = a_a([2.0, 2.2, 2.0, 2.0, 2.1, 1.9])
    assert told["gateway_cpu_a_by_a"] == pytest.approx(1.0)
    assert told["gateway_cpu_most_by_least_round"] == pytest.approx(2.2 / 1.9)


def test_the_interval_of_a_median_narrows_with_more_pairs() -> None:
    few, many = ([n / 100 for n in range(-8, 12) for _ in range(times)] for times in (1, 20))
    wide, narrow = cost_of(found(*few), BOTH), cost_of(found(*many), BOTH)
    assert wide.low < narrow.low <= narrow.share <= narrow.high < wide.high


def test_scrapes_are_part_of_what_the_goal_is_about() -> None:
    goal = goals(found(0.019))["cost_share"]
    assert goal["figure"] == pytest.approx(0.021)
    assert not goal["met"]
    assert goals(found(0.017))["cost_share"]["met"]


def test_one_turn_is_enough_for_figures() -> None:
    costs = {"A/A": 0.02, "metrics + explanations": 0.02, "tokens": 0.02}
    assert figures(found(0.02))["cost_share"] == costs


@pytest.fixture
def everything_again() -> Iterator[None]:
    """What is taken from classes and modules is taken from all gateways."""
    gap, log = vars(AnswerToClient)["_record_time"], request_watch.__dict__["log_request"]
    yield
    assert vars(AnswerToClient)["_record_time"] is gap
    assert request_watch.__dict__["log_request"] is log


async def told_of_one_request(
    front: Front, engine: FakeEngine, caplog: pytest.LogCaptureFixture, kept: list[str]
) -> set[str]:
    """Which parts have reported it; `kept` is to hold the ids of what is explained."""
    before = await front.metrics()
    caplog.clear()
    async with front.post(stream=True) as answer:
        assert answer.status == 200
        await answer.read()
    after = await front.metrics()
    counted = {name for name in after if after[name] != before.get(name, 0.0)}
    told = {"metrics"} if counted else set()
    if any(r.name == "deployments.gateway.request_log" for r in caplog.records):
        told.add("log")
    if RESUMABLE_HEADER in engine.headers[-1]:
        told.add("tokens")
    return told | ({"explanations"} if kept else set())


@pytest.mark.parametrize("parts", [NOTHING, BOTH, *EACH], ids=lambda parts: "+".join(sorted(parts)))
async def test_only_the_remaining_parts_report_a_request(
    parts: frozenset[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    everything_again: None,
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(Explanations, "keep", lambda *given: kept.append(given[2]))
    caplog.set_level(logging.INFO, "deployments.gateway.request_log")
    async with gateway_before(engine := FakeEngine("r0")) as front:
        ways = Parts(front.gateway)
        ways.leave(parts)
        try:
            assert await told_of_one_request(front, engine, caplog, kept) == parts
            assert not front.gateway.parts.bodies.held_bytes  # otherwise it is full after thousands
        finally:
            ways.leave(EVERYTHING)
