"""Ray Serve's own autoscaler, on the simulation's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ray.serve.config import AutoscalingConfig

from autoscaling.slo import Slo
from simulator.engines import Hardware
from simulator.fleet import Call, SimulatedFleet
from simulator.peers import PlainStack
from simulator.serve_default import TARGET_ONGOING_REQUESTS, ServeDefaultAutoscaler
from simulator.traces import Request
from simulator.types import FleetSettings

HARDWARE = Hardware(prefill_rate=100.0, step_s=0.01, sequences=2)
ONE_TO_EIGHT = FleetSettings(HARDWARE, 10.0, Slo(1.0), min_replicas=1, max_replicas=8)


def targets(
    autoscaler: ServeDefaultAutoscaler,
    requests: Callable[[int], int],
    seconds: int,
    queued: int = 0,
) -> list[int]:
    """What one replica with N requests makes of it, second by second."""
    return [
        autoscaler.target(queued, {"r0": requests(second)}, float(second))
        for second in range(seconds)
    ]


def test_the_defaults_are_those_of_ray_serve() -> None:
    assert TARGET_ONGOING_REQUESTS == AutoscalingConfig().target_ongoing_requests == 2.0


def test_ray_serve_scales_up_after_its_delay_to_the_mean_demand() -> None:
    found = targets(ServeDefaultAutoscaler(ONE_TO_EIGHT, 2.0), lambda second: 10, 60)
    assert found[:30] == [1] * 30
    assert found[31:] == [5] * 29


def test_queued_requests_count_as_well() -> None:
    found = targets(ServeDefaultAutoscaler(ONE_TO_EIGHT, 2.0), lambda second: 2, 60, queued=6)
    assert found[-1] == 4


def test_ray_serve_averages_over_its_window() -> None:
    # nothing for ten minutes, then ten at once: within half a minute the mean is still lower
    found = targets(
        ServeDefaultAutoscaler(ONE_TO_EIGHT, 2.0), lambda second: 10 * (second >= 600), 660
    )
    assert found[600:630] == [1] * 30
    assert 1 < max(found) <= 5


def test_ray_serve_scales_down_after_ten_minutes() -> None:
    found = targets(
        ServeDefaultAutoscaler(ONE_TO_EIGHT, 2.0), lambda second: 10 * (second < 60), 800
    )
    down = next(i for i in range(60, 800) if found[i] < found[i - 1])
    assert found[59] == 5
    # when nothing is left in its window, and the delay after that
    assert 60 + 600 <= down <= 60 + 30 + 10 + 600 + 10


def test_ray_serve_respects_its_bounds() -> None:
    bounds = replace(ONE_TO_EIGHT, min_replicas=2, max_replicas=3)
    found = targets(ServeDefaultAutoscaler(bounds, 2.0), lambda second: 100 * (second < 100), 900)
    assert {*found} == {2, 3}


def test_requests_wait_in_the_handle_while_every_replica_is_full() -> None:
    fleet = SimulatedFleet(HARDWARE, 10.0, 2)
    autoscaler = ServeDefaultAutoscaler(ONE_TO_EIGHT, TARGET_ONGOING_REQUESTS)
    stack = PlainStack(fleet, autoscaler, seed=0)
    calls = [Call(i, Request(0.0, 100, 1 + i)) for i in range(6)]
    for call in calls:
        stack.arrive(call, 0.0)
    assert [replica.requests for replica in fleet.serving] == [2, 2]
    assert stack.waiting == 2
    now = 0.0
    while stack.waiting:
        assert fleet.next_change_at is not None
        now = fleet.next_change_at
        stack.progressed(fleet.advance(now), now)
    # first come, first served
    assert calls[4].placed_at is not None
    assert calls[5].placed_at is not None
    assert 0.0 < calls[4].placed_at <= calls[5].placed_at
