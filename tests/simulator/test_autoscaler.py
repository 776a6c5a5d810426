"""What the autoscaler learns in a simulation, and that its decisions are followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaling.scaling.scaling import Limits, ScalingDecision, Signals, State
from autoscaling.slo import Slo
from simulator import autoscaler
from simulator.engines import Hardware
from simulator.simulation import run
from simulator.traces import Request, Trace
from simulator.types import FleetSettings, Result

HARDWARE = Hardware(prefill_rate=1000.0, step_s=0.02, sequences=8, blocks=1000)
POOL = FleetSettings(HARDWARE, startup_s=20.0, slo=Slo(2.0), min_replicas=1, max_replicas=4)


class Told:
    """Stands in for `decide`: keeps the signals that it gets, and asks for the given replicas."""

    def __init__(self, demand: int, target: int) -> None:
        self.demand, self.target = demand, target
        self.signals: list[Signals] = []
        self.limits: list[Limits] = []

    def __call__(self, signals: Signals, state: State, limits: Limits) -> ScalingDecision:
        self.signals.append(signals)
        self.limits.append(limits)
        return ScalingDecision(self.demand, self.target, state, {"why": "a test"})


def play(
    monkeypatch: pytest.MonkeyPatch, told: Told, requests: list[Request], pool: FleetSettings = POOL
) -> Result:
    monkeypatch.setattr(autoscaler, "decide", told)
    return run(Trace("told", tuple(requests), 60.0), pool, "antefix")


def test_the_autoscaler_sees_arrivals_one_second_late(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(1, 1)
    requests = [Request(0.5 + i, 400, 4) for i in range(20)]
    play(monkeypatch, told, requests)
    first, second, later = told.signals[0], told.signals[1], told.signals[10]
    assert (first.arrived, first.told_at) == (None, None)
    assert (second.arrived, second.told_at) == (0, 0.0)
    # nine have come by the second before, and the tenth since
    assert (later.now, later.told_at, later.arrived) == (10.0, 9.0, 9)
    assert (later.prompt_tokens, later.uncached_tokens, later.rejected) == (3600, 3600, 0)
    assert later.output_tokens == 9 * 4


def test_the_autoscaler_gets_the_rates_that_an_engine_has_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(1, 1)
    play(monkeypatch, told, [Request(5.5, 400, 100)])
    before, after = told.signals[5].engine, told.signals[30].engine
    assert (before.prefill_rate, before.step_s) == (None, None)
    assert before.max_sequences == 8
    # over the whole of its step
    assert after.prefill_rate == pytest.approx(400 / (0.4 + 0.02))
    assert after.step_s == pytest.approx(0.02 + 0.0002)


def test_the_target_starts_replicas_and_the_demand_activates_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(2, 3)
    result = play(monkeypatch, told, [Request(0.5, 400, 5)])
    assert (told.signals[1].running, told.signals[1].starting) == (1, 2)
    assert (told.signals[-1].running, told.signals[-1].starting) == (3, 0)
    last = result.samples[-1]
    assert (last.paid, last.serving, last.active) == (3, 3, 2)
    assert last.reasons == {"why": "a test"}


def test_a_promotion_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(1, 2)
    # at once three times what one can hold within the SLO
    requests = [Request(40.5, 900, 2) for _ in range(7)]
    play(monkeypatch, told, requests)
    assert [signals.promoted for signals in told.signals[39:43]] == [0, 0, 1, 0]


def test_without_a_replica_no_startup_time_is_known_and_requests_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(0, 0)
    pool = replace(POOL, min_replicas=0)
    monkeypatch.setattr("simulator.simulation.MAX_TAIL_S", 10.0)
    with pytest.raises(RuntimeError, match="leaves 1 requests waiting forever"):
        play(monkeypatch, told, [Request(0.5, 400, 5)], pool)
    assert told.signals[-1].startup_s is None
    assert told.signals[-1].waiting == 1


def test_the_autoscaler_gets_the_limits_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(1, 1)
    play(monkeypatch, told, [], replace(POOL, warm_replicas=2))
    [limits] = {*told.limits}
    assert (limits.min_replicas, limits.max_replicas, limits.warm_replicas) == (1, 4, 2)
    assert limits.slo == POOL.slo
