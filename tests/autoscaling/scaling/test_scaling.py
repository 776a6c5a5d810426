"""How many replicas a pool gets: bounds for any signal, and sense for those that make sense."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoscaling.scaling.holding import ReplicaHold
from autoscaling.scaling.scaling import (
    FRESH_S,
    STEP_S,
    EngineRates,
    Limits,
    ScalingDecision,
    Signals,
    State,
    decide,
)
from autoscaling.slo import Slo

LIMITS = Limits(min_replicas=1, max_replicas=8, slo=Slo(3.0), startup_s=30.0)
ENGINE = EngineRates(3500.0, 0.02, 0.0002, 128, 640_000)
PROMPT, ANSWER = 2000.0, 200.0


@dataclass
class FluidPool:
    """Poisson arrivals and replicas that work like a pipe: enough to see what the policy does.

    Requests are served after their prompt tokens; what would wait longer than the SLO is refused.
    """

    rate: Callable[[float], float]
    limits: Limits = LIMITS
    seed: int = 0
    startup_s: float = 30.0
    running: int = 1
    starting: list[float] = field(default_factory=list)
    arrived: float = 0.0
    rejected: float = 0.0
    queued: float = 0.0
    output: float = 0.0
    state: State = field(default_factory=State)
    decisions: list[ScalingDecision] = field(default_factory=list)

    def play(self, seconds: int, **told: Any) -> list[int]:
        """The demands of these seconds; `told` replaces the signals that the policy gets."""
        rng = random.Random(self.seed)
        begin = len(self.decisions)
        for second in range(begin, begin + seconds):
            self.work(rng, float(second))
            decision = decide(self.signals(float(second), **told), self.state, self.limits)
            stored = json.loads(json.dumps(decision.state.to_dict(), allow_nan=False))
            self.state = State.from_dict(stored)
            self.decisions.append(decision)
            self.scale(decision.target, float(second))
        return [decision.demand for decision in self.decisions[begin:]]

    def work(self, rng: random.Random, now: float) -> None:
        self.running += sum(up_at <= now for up_at in self.starting)
        self.starting = [up_at for up_at in self.starting if up_at > now]
        at = rng.expovariate(self.rate(now)) if self.rate(now) else 1.0
        while at < 1.0:
            self.arrived += 1
            if self.queued > self.running * 3500.0 * self.limits.slo.ttft_s:
                self.rejected += 1
            else:
                self.queued += PROMPT
            at += rng.expovariate(self.rate(now))
        done = min(self.queued, self.running * 3500.0)
        self.queued -= done
        self.output += done / PROMPT * ANSWER

    def signals(self, now: float, **told: Any) -> Signals:
        rate = self.rate(now)
        known = Signals(
            now=now,
            arrived=self.arrived,
            rejected=self.rejected,
            prompt_tokens=self.arrived * PROMPT,
            uncached_tokens=self.arrived * PROMPT,
            output_tokens=self.output,
            told_at=now,
            running=self.running,
            starting=len(self.starting),
            in_flight=round(rate * ANSWER * 0.04 + self.queued / PROMPT),
            waiting=0,
            queued_tokens=self.queued,
            promoted=0,
            engine=ENGINE,
            startup_s=self.startup_s,
        )
        return replace(known, **told)

    def scale(self, target: int, now: float) -> None:
        more = target - self.running - len(self.starting)
        self.starting += [now + self.startup_s] * more
        while more < 0 and self.starting:
            self.starting.pop()
            more += 1
        self.running += min(0, more)


def turns(demands: list[int]) -> int:
    """How often it went up after down, or down after up."""
    steps = [after - before for before, after in pairwise(demands)]
    ways = [step > 0 for step in steps if step]
    return sum(before != after for before, after in pairwise(ways))


wild = (
    st.none()
    | st.floats()
    | st.integers(-(10**18), 10**18)
    | st.floats(0, 1000)
    | st.integers(0, 20)
    | st.booleans()
)
wild_signals = st.builds(
    Signals,
    **{f.name: wild for f in fields(Signals) if f.name not in ("now", "engine")},
    now=st.floats() | st.floats(0, 1000),
    engine=st.builds(EngineRates, wild, wild, wild, wild, wild),
)
limits = st.builds(
    Limits,
    min_replicas=st.integers(0, 4),
    max_replicas=st.integers(4, 12),
    slo=st.builds(Slo, st.floats(0.01, 60), st.none() | st.floats(0.001, 1)),
    warm_replicas=st.integers(0, 4),
    startup_s=st.floats(0.1, 1000),
    downscale_hold_s=st.floats(0.1, 1000),
    idle_s=st.floats(0, 1000),
)


def told_at(now: float, **told: Any) -> Signals:
    known = Signals(now, arrived=now, uncached_tokens=now, output_tokens=0.0, told_at=now)
    return replace(known, **told)


@given(st.lists(wild_signals, max_size=8), limits)
@example([told_at(0.0), told_at(126.0, starting=7_936_507_936_508)], LIMITS)
@example([told_at(0.0), told_at(2.0, running=10**15)], LIMITS)
@example([told_at(float(at), arrived=at % 2 * 1e15) for at in range(9)], LIMITS)
def test_the_target_is_within_bounds_for_any_signals(told: list[Signals], bounds: Limits) -> None:
    state, demand = State(), None
    for signals in told:
        decision = decide(signals, state, bounds)
        assert bounds.min_replicas <= decision.demand <= decision.target <= bounds.max_replicas
        assert decision.target <= decision.demand + bounds.warm_replicas
        assert demand is None or decision.demand >= demand - 1
        json.dumps(dict(decision.reasons), allow_nan=False)
        state, demand = State.from_dict(decision.state.to_dict()), decision.demand
        assert state == decision.state


@settings(max_examples=settings().max_examples // 2)
@given(st.floats(0.1, 10), st.floats(1, 3), st.integers(0, 100))
def test_more_arrivals_never_get_fewer_replicas(rate: float, times: float, seed: int) -> None:
    def settled(per_s: float) -> int:
        state = State()
        for second in range(60):
            at = float(second)
            count = math.floor(per_s * at)
            pool = FluidPool(lambda _: per_s, arrived=count, output=count * ANSWER)
            decision = decide(pool.signals(at, in_flight=0), state, LIMITS)
            state = decision.state
        return decision.demand

    assert settled(rate * times) >= settled(rate)


@pytest.mark.parametrize(("rate", "seed"), [(0.3, 0), (2.0, 1), (4.0, 2), (4.0, 3), (8.0, 4)])
def test_on_steady_traffic_it_stays_where_it_is(rate: float, seed: int) -> None:
    pool = FluidPool(lambda _: rate, seed=seed)
    pool.play(300)
    assert turns(pool.play(900)) <= 2


@pytest.mark.parametrize("seed", range(4))
def test_replicas_start_within_seconds_of_a_sudden_increase(seed: int) -> None:
    pool = FluidPool(lambda at: 1.0 if at < 300 else 8.0, seed=seed)
    before = pool.play(300)[-1]
    assert before <= 3
    assert pool.play(8)[-1] >= 5


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("startup_s", [30.0, 120.0])
def test_scaling_does_not_overshoot_while_replicas_start(seed: int, startup_s: float) -> None:
    wide = replace(LIMITS, max_replicas=50)
    pool = FluidPool(lambda at: 1.0 if at < 300 else 8.0, wide, seed, startup_s)
    pool.play(300)
    # 8 a second are 4.6 replicas' work; whatever waits and is refused until they are up
    assert max(pool.play(600)) <= 12


def test_replicas_are_removed_one_by_one_after_the_hold_time() -> None:
    pool = FluidPool(lambda at: 8.0 if at < 600 else 1.0)
    high = pool.play(600)[-1]
    demands = pool.play(900)
    assert demands[: int(LIMITS.downscale_hold_s)] == [high] * int(LIMITS.downscale_hold_s)
    steps = [at for at in range(1, len(demands)) if demands[at] < demands[at - 1]]
    assert all(demands[at - 1] - demands[at] == 1 for at in steps)
    assert all(after - before >= STEP_S for before, after in pairwise(steps))
    assert demands[-1] <= 2


def test_bursts_that_recur_find_their_replicas() -> None:
    pool = FluidPool(lambda at: 8.0 if at % 120 < 20 else 1.0)
    pool.play(600)
    assert min(pool.play(600)) >= 5


def test_replicas_for_a_ramp_start_before_they_are_needed() -> None:
    pool = FluidPool(lambda at: 1.0 + at / 100.0, startup_s=120.0, running=1)
    pool.play(700)
    assert pool.rejected <= 0.01 * pool.arrived


@pytest.mark.parametrize(
    "told",
    [
        {"arrived": None},
        {"told_at": None},
        {"told_at": 100.0 - FRESH_S - 1},
        {"arrived": math.nan},
        {"uncached_tokens": math.inf},
        {"engine": EngineRates()},
    ],
)
def test_missing_signals_do_not_scale_a_pool_down(told: dict[str, Any]) -> None:
    pool = FluidPool(lambda at: 6.0 if at < 100 else 0.5)
    high = pool.play(100)[-1]
    assert min(pool.play(300, **told)) == high


def test_a_backlog_starts_replicas_even_if_arrival_counts_are_missing() -> None:
    pool = FluidPool(lambda _: 0.0)
    pool.play(10)
    assert pool.play(1, arrived=None, queued_tokens=600_000.0)[-1] > 4


def test_waiting_requests_start_replicas_even_if_engine_rates_are_missing() -> None:
    pool = FluidPool(lambda _: 0.0)
    demands = pool.play(150, engine=EngineRates(), arrived=None, waiting=5)
    assert demands[-1] == 2


def test_rejections_that_the_model_does_not_explain_add_a_replica() -> None:
    pool = FluidPool(lambda _: 2.0)
    settled = pool.play(200)[-1]
    for _ in range(90):
        pool.rejected += 0.2
        pool.play(1)
    assert pool.decisions[-1].demand == settled + 1


@pytest.mark.parametrize("promoted", [1, 2])
def test_promoted_replicas_are_demand_and_counted_once(promoted: int) -> None:
    warm = replace(LIMITS, warm_replicas=2)
    pool = FluidPool(lambda _: 1.0, warm, running=4)
    base = pool.play(200)[-1]
    pool.running = base + 2
    # gateways report the same for some seconds after the demand was raised
    assert pool.play(5, promoted=promoted) == [base + promoted] * 5
    assert pool.decisions[-1].target == base + promoted + 2


def test_requests_in_flight_are_never_left_without_room() -> None:
    pool = FluidPool(lambda _: 0.0, running=5)
    assert min(pool.play(600, in_flight=4 * 128 + 1)) == 5


def test_an_idle_pool_scales_to_zero_and_up_again() -> None:
    sleepy = replace(LIMITS, min_replicas=0, idle_s=200.0)
    pool = FluidPool(lambda at: 1.0 if at < 100 else 0.0, sleepy)
    demands = pool.play(600)
    assert min(demands[:290]) >= 1
    assert demands[-1] == 0
    assert pool.play(1, waiting=1)[-1] == 1


def test_a_pool_at_zero_starts_a_replica_for_the_first_request() -> None:
    sleepy = replace(LIMITS, min_replicas=0)
    pool = FluidPool(lambda _: 0.0, sleepy, running=0)
    assert pool.play(100) == [0] * 100
    pool.arrived += 1
    assert pool.play(1) == [1]


def test_a_pool_without_reports_is_not_idle() -> None:
    sleepy = replace(LIMITS, min_replicas=0, idle_s=10.0)
    pool = FluidPool(lambda _: 0.0, sleepy)
    assert pool.play(300, told_at=None)[-1] == 1


def test_running_replicas_are_kept_without_a_stored_state() -> None:
    pool = FluidPool(lambda _: 1.0, running=6)
    assert pool.play(1) == [6]
    # starting ones, too
    assert decide(needing_one(running=2, starting=1), State(), LIMITS).demand == 3


@pytest.mark.parametrize("leap_s", [-1e6, 3600.0])
def test_a_jump_of_the_clock_does_not_scale_down_at_once(leap_s: float) -> None:
    pool = FluidPool(lambda at: 6.0 if at < 100 else 0.5)
    high = pool.play(130)[-1]
    signals = replace(pool.signals(130.0), now=130.0 + leap_s, told_at=130.0 + leap_s)
    assert decide(signals, pool.state, LIMITS).demand == high


def test_requests_in_the_replicas_have_about_half_of_their_answers() -> None:
    """So the tokens of a request are known before the first has ended."""
    before = decide(told_at(0.0, arrived=0.0, in_flight=0), State(), LIMITS)
    told = told_at(10.0, arrived=40.0, rejected=10.0, output_tokens=2000.0, waiting=6, in_flight=8)
    state = decide(told, before.state, LIMITS).state
    assert state.history.samples[-1].progressed == 40 - 10 - 6 - 8 / 2
    assert state.history.per_request("output_tokens") == 2000.0 / 20


@pytest.mark.parametrize("told", [{"waiting": 1}, {"in_flight": 1}, {"told_at": None}])
def test_a_pool_with_requests_is_not_idle(told: dict[str, Any]) -> None:
    sleepy = replace(LIMITS, min_replicas=0, idle_s=20.0)
    pool = FluidPool(lambda _: 0.0, sleepy)
    assert pool.play(10)[-1] == 1
    assert min(pool.play(200, **told)) == 1
    busy_until = pool.decisions[-1].state.busy_at
    assert busy_until == 209.0
    assert pool.play(200)[-1] == 0


def of_two(**known: Any) -> State:
    """The state a second ago of a pool with two replicas, of which one is needed."""
    state = State(now=999.0, demand=2, levels=(ReplicaHold(0.0, 1.0),) * 2, busy_at=999.0)
    return replace(state, **known)


def needing_one(**told: Any) -> Signals:
    known = Signals(
        now=1000.0,
        arrived=100.0,
        rejected=0.0,
        uncached_tokens=1000.0,
        output_tokens=0.0,
        told_at=1000.0,
        running=2,
        starting=0,
        in_flight=0,
        waiting=0,
        queued_tokens=0.0,
        engine=ENGINE,
        startup_s=30.0,
    )
    return replace(known, **told)


@pytest.mark.parametrize(
    ("raised_at", "lowered_at", "demand"),
    [
        # a requested replica is kept for its start, 30 s, and for the usual hold time, 30 s
        (940.5, 0.0, 2),
        (940.0, 0.0, 1),
        # the others have shown the load of the removed replica after 10 s
        (0.0, 990.5, 2),
        (0.0, 990.0, 1),
    ],
)
def test_a_replica_is_not_removed_right_after_a_start_or_a_removal(
    raised_at: float, lowered_at: float, demand: int
) -> None:
    state = of_two(raised_at=raised_at, lowered_at=lowered_at)
    assert decide(needing_one(), state, LIMITS).demand == demand


@pytest.mark.parametrize(("last_at", "demand"), [(970.0, 1), (969.5, 2)])
def test_nothing_is_removed_right_after_a_pause_whose_demand_is_unknown(
    last_at: float, demand: int
) -> None:
    assert decide(needing_one(), of_two(now=last_at), LIMITS).demand == demand


@pytest.mark.parametrize("engine", [ENGINE, EngineRates()])
@pytest.mark.parametrize(("busy_at", "demand"), [(700.0, 0), (700.5, 1)])
def test_the_last_replica_is_removed_after_the_idle_time(
    busy_at: float, demand: int, engine: EngineRates
) -> None:
    sleepy = replace(LIMITS, min_replicas=0, idle_s=300.0)
    state = of_two(demand=1, levels=(ReplicaHold(0.0, 1.0),), busy_at=busy_at)
    assert decide(needing_one(running=1, engine=engine), state, sleepy).demand == demand


@pytest.mark.parametrize(("running", "demand"), [(9, 5), (4, 4)])
def test_only_running_promoted_replicas_count_as_demand(running: int, demand: int) -> None:
    assert decide(needing_one(running=running, promoted=3), of_two(), LIMITS).demand == demand


@pytest.mark.parametrize(
    ("raised_at", "told", "demand"),
    [
        (910.0, {"waiting": 1}, 3),
        # the effect of the last requested replica is unknown during its start, and for a minute
        (910.5, {"waiting": 1}, 2),
        (910.0, {"waiting": 1, "starting": 1}, 2),
        (910.0, {"waiting": 0}, 2),
        # the forecast knows better, where the engine's speed is known
        (910.0, {"waiting": 1, "engine": ENGINE}, 1),
    ],
)
def test_waiting_requests_ask_for_one_more_once_the_last_start_has_shown_its_effect(
    raised_at: float, told: dict[str, Any], demand: int
) -> None:
    signals = needing_one(**{"engine": EngineRates(), **told})
    assert decide(signals, of_two(raised_at=raised_at), LIMITS).demand == demand


def test_a_decision_reports_its_reasons() -> None:
    pool = FluidPool(lambda _: 6.0)
    pool.play(60)
    reasons = next(d.reasons for d in pool.decisions if d.demand > 1)
    assert reasons["because"] == "forecast"
    assert float(reasons["for_forecast"]) >= 4.0
    assert {"requests_per_s", "expected_per_s", "backlog_s", "startup_s"} <= reasons.keys()
