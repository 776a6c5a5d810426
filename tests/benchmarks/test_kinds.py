"""Pools of two kinds in virtual time: what each choice does, and how it is judged."""

from __future__ import annotations

import pytest

from autoscaling.slo import Slo
from benchmarks.kinds.pools import (
    AcceleratorKind,
    CompetingPools,
    KindPool,
    PoolChooser,
    by_cost,
    by_speed,
    learned,
    told,
)
from benchmarks.kinds.run import AGAIN, FASTEST, OURS, TOLD, figures_of, goals_of, price_ratio
from simulator.engines import Hardware
from simulator.simulation import play
from simulator.traces import Request, Trace
from simulator.types import FleetSettings, Result

SLOW = AcceleratorKind("slow", Hardware(prefill_rate=1000.0), 1.0, 1, 1)
FAST = AcceleratorKind("fast", Hardware(prefill_rate=4000.0), 8.0, 1, 1)
# A prompt takes 1 s of the slow engine, and 3 s by the prior.
SLO, STARTUP_S, PRIOR, PROMPT = Slo(2.0), 60.0, 333.0, 1000


def served(
    chooser: PoolChooser, every_s: float, seconds: float = 60.0
) -> tuple[Result, CompetingPools]:
    requests = tuple(
        Request(number * every_s, PROMPT, 5) for number in range(int(seconds / every_s))
    )
    trace = Trace("steady", requests, seconds)
    pools = [KindPool(kind, chooser, SLO, STARTUP_S, 0) for kind in (SLOW, FAST)]
    together = CompetingPools(pools)
    settings = FleetSettings(SLOW.hardware, STARTUP_S, SLO)
    return play(trace, settings, "", together, None, together), together


def count_of(pools: CompetingPools) -> dict[str, int]:
    return {name: len(pool.calls) for name, pool in pools.by_kind.items()}


def test_the_cheap_gpu_model_serves_all_requests_that_it_can_serve_in_time() -> None:
    _, pools = served(PoolChooser(by_cost, told), every_s=3.0)
    assert count_of(pools) == {"slow": 20, "fast": 0}


def test_fastest_first_leaves_the_slow_gpu_model_idle() -> None:
    _, pools = served(PoolChooser(by_speed, told), every_s=3.0)
    assert count_of(pools) == {"slow": 0, "fast": 20}


def test_requests_that_are_too_slow_on_the_cheap_gpu_model_go_to_the_other() -> None:
    result, pools = served(PoolChooser(by_cost, told), every_s=0.5)
    assert min(count_of(pools).values()) > 30
    assert result.attainment == 1.0


def test_rates_are_learned_despite_a_wrong_prior() -> None:
    result, pools = served(PoolChooser(by_cost, learned(PRIOR)), every_s=0.5)
    assert min(count_of(pools).values()) > 30
    assert result.attainment > 0.9
    rates = [r.engine.load()["pace"].prefill_rate for r in pools.serving]
    assert rates == pytest.approx([1000.0, 4000.0], rel=0.1)


def test_both_gpu_models_are_paid_for_until_the_end() -> None:
    result, pools = served(PoolChooser(by_cost, told), every_s=3.0)
    assert pools.replica_seconds(result.seconds) == pytest.approx(2 * result.seconds)


def test_goals_are_medians_of_ratios_within_a_seed() -> None:
    cost = {OURS: [7.0, 8.0, 30.0], FASTEST: [10.0, 10.0, 40.0], TOLD: [1.0] * 3, AGAIN: [1.0] * 3}
    hours = {OURS: (3.0, 1.0), FASTEST: (1.0, 2.0), TOLD: (3.0, 1.0), AGAIN: (3.0, 1.0)}
    ramp = {
        by: {
            "cost": cost[by],
            "token_cost": cost[by],
            "ttft_p99_s": [2.0, 2.2, 2.1] if by == OURS else [2.0] * 3,
            "slow_hours": [hours[by][0]] * 3,
            "fast_hours": [hours[by][1]] * 3,
        }
        for by in cost
    }
    goals = goals_of({"ramp": ramp})
    assert {name: (goal["figure"], goal["met"]) for name, goal in goals.items()} == {
        "ramp_p99_ttft_of_told": (1.05, True),
        "ramp_cost_of_fastest_first": (0.75, True),
    }
    # 3 + r = 1 + 2 r
    assert figures_of({"ramp": ramp})["ramp"]["price_ratio_of_no_gain"] == 2.0
    assert price_ratio(ramp, 0.5) is None
