"""How the simulation is judged: by several seeds, by tails as well as means, and by refusals."""

from __future__ import annotations

import pytest

from benchmarks.validation.results import ComparedLoad, LoadResult, figures, goals
from benchmarks.validation.run import mean_of
from simulator.engine_profile import EngineProfile
from simulator.engines import Hardware


def profile(prefill_rate: float, step_s: float) -> EngineProfile:
    return EngineProfile(Hardware(prefill_rate=prefill_rate, step_s=step_s), 20.0, {})


def seen(ttft_s: float, tail_s: float, count: int = 100, refused: int = 0) -> LoadResult:
    """A fifth of the requests take `tail_s`."""
    slow = count // 5
    return LoadResult((ttft_s,) * (count - slow) + (tail_s,) * slow, refused)


def compared(*pairs: tuple[LoadResult, LoadResult]) -> list[ComparedLoad]:
    return [ComparedLoad(0.8, seed, *pair) for seed, pair in enumerate(pairs)]


def test_engines_are_described_by_their_mean() -> None:
    found = mean_of([profile(800.0, 0.04), profile(400.0, 0.08)]).hardware
    assert found.prefill_rate == pytest.approx(600.0)
    assert found.step_s == pytest.approx(0.06)


def test_a_simulation_with_a_correct_mean_and_a_wrong_tail_misses_a_goal() -> None:
    real, simulated = seen(1.0, 3.0), seen(1.2, 2.2)
    judged = goals(compared(*[(real, simulated)] * 3))
    assert judged["error_of_mean_ttft_at_load_0.8"]["met"]
    tail = judged["error_of_p90_ttft_at_load_0.8"]
    assert (tail["figure"], tail["met"]) == (pytest.approx(0.8 / 3, abs=1e-4), False)


def test_the_best_seed_alone_does_not_decide_a_goal() -> None:
    real = seen(1.0, 1.0)
    judged = goals(compared((real, real), (real, seen(1.2, 1.2)), (real, seen(1.3, 1.3))))
    mean = judged["error_of_mean_ttft_at_load_0.8"]
    assert (mean["figure"], mean["met"], mean["range"]) == (0.2, False, [0.0, 0.3])


@pytest.mark.parametrize(("count", "has"), [(100, False), (150, True)])
def test_a_p99_covers_all_seeds_and_at_least_300_requests(count: int, has: bool) -> None:
    pair = seen(1.0, 2.0, count), seen(1.0, 2.0, count)
    judged = goals(compared(pair, pair))
    assert ("error_of_p99_ttft_at_load_0.8" in judged) is has
    assert ("ttft_p99_s" in figures(compared(pair, pair))["load 0.8"]["observed"]) is has


def test_the_share_of_rejected_requests_has_a_goal() -> None:
    real, simulated = seen(1.0, 2.0, refused=100), seen(1.0, 2.0, refused=0)
    refused = goals(compared((real, simulated)))["difference_of_refused_share_at_load_0.8"]
    assert (refused["figure"], refused["met"]) == (0.5, False)
