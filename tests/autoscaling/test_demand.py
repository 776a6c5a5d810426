"""Every term that can ask for replicas, for itself."""

from dataclasses import replace

import pytest

from autoscaling.capacity import EngineRates, Workload
from autoscaling.demand import (
    PoolDemand,
    for_backlog,
    for_forecast,
    for_in_flight,
    misses_too_many,
    seen_speed,
)
from autoscaling.forecast import DemandSample, Forecast, History
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


def test_more_is_expected_so_more_are_needed() -> None:
    rising = replace(POOL, line=replace(POOL.line, slope=0.05))
    assert for_forecast(rising, 60.0) > for_forecast(POOL, 60.0) > 2


def test_a_falling_rate_does_not_count_before_it_has_fallen() -> None:
    falling = replace(POOL, line=replace(POOL.line, slope=-0.05))
    assert for_forecast(falling, 60.0) == for_forecast(POOL, 60.0)


def test_doubt_asks_for_more() -> None:
    unsure = replace(POOL, line=replace(POOL.line, level_var=4.0))
    assert for_forecast(unsure, 0.0, 1.0) > for_forecast(unsure, 0.0)


def test_without_the_engines_rates_the_forecast_asks_for_nothing() -> None:
    assert for_forecast(replace(POOL, engine=EngineRates()), 60.0, 1.0) == 0


@pytest.mark.parametrize(
    ("queued", "replicas"),
    [
        (0, 0),
        # gone long before a new one were up
        (20_000, 3),
        # 4,000 a second arrive in addition, and a start takes 60 s
        (1_000_000, 10),
    ],
)
def test_replicas_for_the_backlog_serve_it_within_one_start_time(
    queued: int, replicas: int
) -> None:
    assert for_backlog(replace(POOL, queued_tokens=queued)) == pytest.approx(replicas, abs=1)


def test_replicas_that_start_are_not_asked_for_twice() -> None:
    waiting = replace(POOL, queued_tokens=500_000.0)
    asked = for_backlog(waiting)
    starting = replace(waiting, starting=asked - waiting.running, up_in_s=60.0)
    assert for_backlog(starting) <= asked
    # later arrivals queue as well, and are what the starting replicas are for
    for left_s in (45.0, 30.0, 15.0, 0.0):
        grown = waiting.queued_tokens
        assert for_backlog(replace(starting, up_in_s=left_s, queued_tokens=grown)) <= asked


def test_requests_in_the_replicas_keep_the_room_that_they_have() -> None:
    assert for_in_flight(replace(POOL, in_flight=101)) == 3
    assert for_in_flight(replace(POOL, in_flight=0)) == 0


def history(arrived: float, refused: float, tokens: float, replica_s: float) -> History:
    return (
        History()
        .heard(DemandSample(0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
        .heard(DemandSample(60.0, arrived, refused, replica_s, tokens, 0.0))
    )


def test_a_replica_can_do_what_it_was_seen_to_do() -> None:
    assert seen_speed(history(100, 0, 120_000, 60.0), 0.0) == 2000.0
    assert seen_speed(history(100, 0, 120_000, 60.0), 60_000.0) == 1000.0
    assert seen_speed(history(100, 10, 120_000, 60.0), 0.0) == 1600.0
    assert seen_speed(history(100, 90, 120_000, 60.0), 0.0) == 0.0
    assert seen_speed(history(100, 0, 120_000, 0.0), 0.0) == 0.0
    assert seen_speed(History(), 0.0) == 0.0


@pytest.mark.parametrize(("refused", "too_many"), [(0, False), (7, False), (12, True), (300, True)])
def test_refusals_count_beyond_what_the_slo_and_chance_allow(refused: int, too_many: bool) -> None:
    assert misses_too_many(history(300, refused, 0, 0.0)) == too_many
