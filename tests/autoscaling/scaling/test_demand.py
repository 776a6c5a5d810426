"""Every term that can ask for replicas, for itself."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autoscaling.scaling.capacity import EngineRates, Workload
from autoscaling.scaling.demand import (
    PoolDemand,
    for_backlog,
    for_forecast,
    for_in_flight,
    misses_too_many,
    seen_speed,
    work_of_a_request,
)
from autoscaling.scaling.forecast import DemandSample, Forecast, History
from autoscaling.slo import Slo

POOL = PoolDemand(
    line=Forecast(rate=4.0, seen_s=300.0),
    request=Workload(1.0, 1000.0, 1000.0, 100.0, 1500.0),
    engine=EngineRates(2000.0, 0.02, 0.0002, 50, 100_000),
    slo=Slo(2.0),
    most=20,
    startup_s=60.0,
    running=3,
)


def test_a_rising_forecast_needs_more_replicas() -> None:
    rising = replace(POOL, line=replace(POOL.line, slope=0.05))
    assert for_forecast(rising, 60.0) > for_forecast(POOL, 60.0) > 2


def test_a_falling_rate_does_not_count_before_it_has_fallen() -> None:
    falling = replace(POOL, line=replace(POOL.line, slope=-0.05))
    assert for_forecast(falling, 60.0) == for_forecast(POOL, 60.0)


def test_an_uncertain_forecast_adds_replicas() -> None:
    unsure = replace(POOL, line=replace(POOL.line, level_var=4.0))
    assert for_forecast(unsure, 0.0, 1.0) > for_forecast(unsure, 0.0)


def test_without_the_engines_rates_the_forecast_asks_for_nothing() -> None:
    assert for_forecast(replace(POOL, engine=EngineRates()), 60.0, 1.0) == 0


def test_the_expected_rate_is_the_greater_of_the_current_and_the_forecast_rate() -> None:
    assert POOL.expected_rate(60.0) == 4.0
    assert replace(POOL, line=replace(POOL.line, slope=-0.05)).expected_rate(60.0) == 4.0
    rare = replace(POOL, line=replace(POOL.line, rate=0.5))
    assert rare.expected_rate(0.0) == 0.5


def test_an_uncertain_forecast_is_zero_without_recent_arrivals() -> None:
    silent = replace(POOL, line=replace(POOL.line, rate=0.0, slope=1.0, level_var=4.0))
    assert silent.expected_rate(60.0, 1.0) == 0.0


def test_the_backlog_in_seconds_is_that_of_each_running_replica() -> None:
    waiting = replace(POOL, queued_tokens=120_000.0)
    assert waiting.backlog_s == 20.0
    # without any, that of the first one that starts
    assert replace(waiting, running=1).backlog_s == replace(waiting, running=0).backlog_s == 60.0
    assert replace(waiting, engine=EngineRates()).backlog_s == 0.0


# 4,000 tokens per second arrive, a replica computes 2,000, and a start takes 60 s.
@pytest.mark.parametrize(
    ("state", "queued", "replicas"),
    [
        ({}, 0, 0),
        ({}, 1, 3),
        # gone long before a new replica is up
        ({}, 20_000, 3),
        ({"running": 5}, 20_000, 3),
        # 1,000,000 in 60 s and the arrivals need 11; meanwhile three compute 120,000 more than come
        ({}, 1_000_000, 10),
        ({}, 10**9, 20),  # the pool's limit
        # one replica falls behind, but admission lets only one SLO of its work wait: 4,000 tokens
        ({"running": 1}, 957_000, 11),
        # starting replicas help once they are up
        ({"starting": 2, "up_in_s": 20.0}, 1_000_000, 8),
        # these are up later than a new one would be, and help nothing until then
        ({"starting": 2, "up_in_s": 90.0}, 1_015_000, 9),
        ({"starting": 2, "up_in_s": 90.0}, 1_020_001, 10),
        # starting replicas are not given up, although fewer are enough once they are up
        ({"starting": 8}, 1_200_000, 11),
        # half the arrivals: the queue ends early, and no work is negative
        ({"starting": 1, "up_in_s": 60.0, "request": replace(POOL.request, uncached_tokens=500.0)},
         1_000, 1),
        # a start that is faster than the SLO: 20,000 in 2 s
        ({"startup_s": 1.0}, 20_000, 7),
    ],
)  # fmt: skip
def test_replicas_for_the_backlog_serve_it_within_one_start_time(
    state: Mapping[str, Any], queued: int, replicas: int
) -> None:
    assert for_backlog(replace(POOL, queued_tokens=float(queued), **state)) == replicas


def test_the_backlog_uses_the_current_rate_and_not_the_forecast() -> None:
    rising = replace(POOL, line=replace(POOL.line, slope=1.0), running=1)
    assert for_backlog(replace(rising, queued_tokens=100_000.0)) == 3


def test_without_the_engines_rates_the_backlog_asks_for_nothing() -> None:
    assert for_backlog(replace(POOL, engine=EngineRates(), queued_tokens=1e6)) == 0


def test_starting_replicas_are_not_requested_twice() -> None:
    waiting = replace(POOL, queued_tokens=500_000.0)
    asked = for_backlog(waiting)
    starting = replace(waiting, starting=asked - waiting.running, up_in_s=60.0)
    assert for_backlog(starting) <= asked
    # later arrivals queue as well, and are what the starting replicas are for
    for left_s in (45.0, 30.0, 15.0, 0.0):
        grown = waiting.queued_tokens
        assert for_backlog(replace(starting, up_in_s=left_s, queued_tokens=grown)) <= asked


def test_running_requests_keep_the_replicas_that_they_need() -> None:
    assert for_in_flight(replace(POOL, in_flight=101)) == 3
    assert for_in_flight(replace(POOL, in_flight=0)) == 0
    assert for_in_flight(replace(POOL, in_flight=10**6)) == POOL.most


def test_the_work_of_a_request_is_that_of_the_mean_request() -> None:
    seen = History(token_dispersion=3.0)
    first = DemandSample(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    last = DemandSample(60.0, 100.0, 0.0, 60.0, 50_000.0, 9_000.0, 200_000.0, 90.0)
    work = work_of_a_request(replace(seen, samples=(first, last)))
    assert work == Workload(
        requests_per_s=1.0,
        uncached_tokens=500.0,
        prompt_tokens=2000.0,
        output_tokens=100.0,
        burst_tokens=1500.0,
    )
    # gateways of an older release do not report the length of prompts
    last = last._replace(prompt_tokens=None)
    assert work_of_a_request(replace(seen, samples=(first, last))).prompt_tokens == 500.0


def test_the_work_of_a_request_is_empty_before_the_first_request() -> None:
    assert work_of_a_request(History()) == Workload(1.0, 0.0, 0.0, 0.0, 0.0)


def history(arrived: float, refused: float, tokens: float, replica_s: float) -> History:
    return (
        History()
        .heard(DemandSample(0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
        .heard(DemandSample(60.0, arrived, refused, replica_s, tokens, 0.0))
    )


def test_the_observed_speed_of_a_replica_is_derived_from_its_history() -> None:
    assert seen_speed(history(100, 0, 120_000, 60.0), 0.0) == 2000.0
    assert seen_speed(history(100, 0, 120_000, 60.0), 60_000.0) == 1000.0
    assert seen_speed(history(100, 10, 120_000, 60.0), 0.0) == 1600.0
    assert seen_speed(history(100, 90, 120_000, 60.0), 0.0) == 0.0
    assert seen_speed(history(100, 0, 120_000, 0.0), 0.0) == 0.0
    assert seen_speed(history(100, 0, 1_000, 0.5), 0.0) == 2000.0
    assert seen_speed(history(0, 0, 120_000, 60.0), 0.0) == 0.0
    assert seen_speed(history(1, 0, 1_200, 60.0), 0.0) == 20.0
    assert seen_speed(History(), 0.0) == 0.0


def test_a_single_rejection_is_not_too_many() -> None:
    assert not misses_too_many(history(0, 1, 0, 0.0))


@pytest.mark.parametrize(("refused", "too_many"), [(0, False), (7, False), (12, True), (300, True)])
def test_rejections_count_only_beyond_what_the_slo_and_chance_allow(
    refused: int, too_many: bool
) -> None:
    assert misses_too_many(history(300, refused, 0, 0.0)) == too_many
