"""HPA and KEDA on a simulated pool: when they look, at what, and what of it they follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaling.slo import Slo
from simulator import kubernetes
from simulator.engines import Hardware
from simulator.fleet import Call, SimulatedFleet
from simulator.peers import Autoscaler
from simulator.traces import Request
from simulator.types import FleetSettings

# A step takes two prompts of 100 tokens.
HARDWARE = Hardware(prefill_rate=100.0, step_s=0.01, step_tokens=200, sequences=64)
POOL = FleetSettings(HARDWARE, 60.0, Slo(1.0), min_replicas=1, max_replicas=8)


def scaler(policy: str, pool: FleetSettings = POOL) -> Autoscaler:
    made = kubernetes.autoscaler(policy, pool)
    assert made is not None
    return made


def busy(requests: int, replicas: int = 1) -> SimulatedFleet:
    """A fleet whose first replica has N requests, of which two are in its step."""
    fleet = SimulatedFleet(HARDWARE, 60.0, replicas)
    for number in range(requests):
        fleet.serving[0].submit(Call(number, Request(0.0, 100, 1000)), 0, 0.0)
    return fleet


def asked_for(fleet: SimulatedFleet) -> int:
    return len(fleet.serving) + len(fleet.starting)


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_hpa_and_keda_sync_every_15_seconds(kind: str) -> None:
    fleet, scales = busy(0), scaler(f"{kind}-concurrency:2")
    scales.scale(fleet, 0, 0.0)
    for number in range(8):
        fleet.serving[0].submit(Call(number, Request(0.0, 100, 1000)), 0, 0.0)
    scales.scale(fleet, 0, 14.0)
    assert asked_for(fleet) == 1
    scales.scale(fleet, 0, 15.0)
    assert asked_for(fleet) == 4


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_requests_that_the_engine_has_not_started_count_as_waiting(kind: str) -> None:
    fleet = busy(7)
    # the first was admitted on arrival; the next step takes two of the others
    fleet.advance(1.5)
    assert fleet.serving[0].requests == 7
    waiting = fleet.serving[0].engine.unscheduled
    assert waiting == 4
    scaler(f"{kind}-waiting:2").scale(fleet, 0, 1.5)
    assert asked_for(fleet) == 2
    fleet = busy(7)
    scaler(f"{kind}-concurrency:2").scale(fleet, 0, 1.5)
    assert asked_for(fleet) == 4


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_requests_queued_in_front_count_as_well(kind: str) -> None:
    fleet = busy(2)
    scaler(f"{kind}-concurrency:2").scale(fleet, 4, 0.0)
    assert asked_for(fleet) == 3


def test_only_hpa_counts_replicas_that_start() -> None:
    # 6 of one that serves, where 4 are wanted; with one that starts it is 6 of 8
    for policy, after in (("hpa-concurrency:4", 2), ("keda-concurrency:4", 2)):
        fleet = busy(6)
        fleet.scale_to(2, 0.0)
        scaler(policy).scale(fleet, 0, 0.0)
        assert asked_for(fleet) == after
    # 3 of one that serves: it would go down, were the one that starts not counted as full
    fleet = busy(3)
    fleet.scale_to(2, 0.0)
    hpa = scaler("hpa-concurrency:4")
    for second in range(0, 330, 15):
        hpa.scale(fleet, 0, float(second))
    assert asked_for(fleet) == 2
    keda = scaler("keda-concurrency:4")
    for second in range(330, 660, 15):
        keda.scale(fleet, 0, float(second))
    assert asked_for(fleet) == 1


def test_keda_takes_the_last_replica_after_its_cooldown_and_starts_one_by_its_poll() -> None:
    pool = replace(POOL, min_replicas=0, initial_replicas=1)
    fleet, keda = busy(0), scaler("keda-concurrency:4", pool)
    course = []
    for second in range(400):
        keda.scale(fleet, 0, float(second))
        course.append(asked_for(fleet))
    assert course[:300] == [1] * 300
    assert course[300:] == [0] * 100
    keda.scale(fleet, 3, 401.0)
    assert asked_for(fleet) == 0
    keda.scale(fleet, 3, 420.0)
    assert asked_for(fleet) == 1


def test_hpa_has_one_replica_at_least() -> None:
    fleet = busy(0, replicas=2)
    hpa = scaler("hpa-waiting:1", replace(POOL, min_replicas=0, initial_replicas=2))
    for second in range(0, 1000, 15):
        hpa.scale(fleet, 0, float(second))
    assert asked_for(fleet) == 1
    with pytest.raises(ValueError, match="never starts the first replica"):
        kubernetes.autoscaler("hpa-waiting:1", replace(POOL, min_replicas=0))


@pytest.mark.parametrize(
    "policy", ["hpa", "hpa-waiting", "hpa-waiting:0", "keda-cpu:1", "hpa-waiting:x", "serve:1"]
)
def test_other_policies_have_no_kubernetes_autoscaler(policy: str) -> None:
    assert kubernetes.autoscaler(policy, POOL) is None
