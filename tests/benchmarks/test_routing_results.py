"""From answers to figures: what is averaged, what is paired, what counts as the worst."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks.harness.load.conversation_player import Answer
from benchmarks.harness.load.routed_runs import RoutingRun
from benchmarks.routing.results import BATCH, figures, goals, summaries, ttft_ratio


def answer(number: int, ttft: float = 0.1, **changes: Any) -> Answer:
    default = Answer(
        conversation=f"c-{number:04}",
        turn=0,
        due=float(number),
        started=float(number),
        first_byte=number + ttft,
        ended=number + ttft + 0.1,
        replica=f"r{number % 4}",
        prompt_tokens=1000,
        cached_tokens=0,
        expected_cached_tokens=0,
        predicted_ttft_s=None,
    )
    return dataclasses.replace(default, **changes)


def run(
    answers: list[Answer],
    workload: str = "short",
    policy: str = "prefix",
    seed: int = 1,
    most_cached: int = 0,
) -> RoutingRun:
    best = (most_cached,) * len(answers)
    return RoutingRun(workload, policy, seed, 4, tuple(answers), best)


def only(*runs: RoutingRun) -> Any:
    ((_, summary),) = summaries(runs).items()
    return summary


def test_seeds_are_pooled() -> None:
    summary = only(run([answer(0, 0.1)] * 3, seed=1), run([answer(0, 0.5)], seed=2))
    assert summary.requests == 4
    assert summary.ttft_mean == pytest.approx(0.2)


def test_a_late_client_counts_against_the_server() -> None:
    assert answer(0, due=0.0, started=0.3, first_byte=0.4).ttft == pytest.approx(0.4)


def test_a_run_of_a_hundred_requests_has_a_p90_for_its_tail() -> None:
    summary = only(run([answer(i, 0.01 * (i + 1)) for i in range(100)]))
    assert summary.ttft_p50 == pytest.approx(0.505)
    assert (summary.ttft_tail.name, summary.ttft_tail.value) == ("p90", pytest.approx(0.901))


def test_cached_ratios_weigh_prompts_by_their_length() -> None:
    answers = [answer(0, cached_tokens=512), answer(1, prompt_tokens=3000)]
    summary = only(run(answers, most_cached=512))
    assert summary.cached_ratio == pytest.approx(512 / 4000)
    assert summary.oracle_ratio == pytest.approx(1024 / 4000)
    assert summary.oracle_share == pytest.approx(0.5)


def test_without_reuse_no_tokens_are_lost_relative_to_the_oracle() -> None:
    assert only(run([answer(0)])).oracle_share == 1.0


def test_the_spread_of_an_even_distribution_is_one() -> None:
    assert run([answer(i) for i in range(8)]).requests_spread == 1.0


def test_the_spread_equals_the_number_of_replicas_if_one_serves_everything() -> None:
    assert run([answer(i, replica="r0") for i in range(8)]).requests_spread == 4.0


def test_the_spread_is_that_of_the_worst_run() -> None:
    even, uneven = [answer(i) for i in range(8)], [answer(i, replica="r0") for i in range(8)]
    assert only(run(even, seed=1), run(uneven, seed=2)).requests_spread == 4.0


def test_cached_tokens_do_not_count_as_load() -> None:
    answers = [answer(i, replica="r0", cached_tokens=900) for i in range(10)]
    spread = run([*answers, answer(10, replica="r1")]).tokens_spread
    assert spread == pytest.approx(2.0)  # 1,000 tokens each on two of four


def test_too_many_and_too_few_expected_tokens_do_not_cancel() -> None:
    answers = [
        answer(0, cached_tokens=128, expected_cached_tokens=256),
        answer(1, cached_tokens=256, expected_cached_tokens=128),
    ]
    assert only(run(answers)).misjudged_ratio == pytest.approx(256 / 2000)


def test_a_ratio_compares_sums_over_requests_that_both_answered() -> None:
    ours = run([answer(0, 0.2), answer(1, 0.2), answer(2, 9.0)], policy="prefix")
    theirs = run([answer(0, 0.1), answer(1, 0.2)], policy="least_loaded")
    ratio = ttft_ratio([ours, theirs], "short", over="least_loaded", under="prefix")
    assert ratio.value == pytest.approx(0.3 / 0.4)


def test_seeds_are_not_paired_with_one_another() -> None:
    ours = run([answer(0, 0.2)], policy="prefix", seed=1)
    theirs = run([answer(0, 0.1)], policy="least_loaded", seed=2)
    ratio = ttft_ratio([ours, theirs], "short", over="least_loaded", under="prefix")
    assert ratio.value != ratio.value


def test_a_constant_ratio_has_no_standard_error() -> None:
    numbers = range(4 * BATCH)
    ours = run([answer(i, 0.01 * (1 + i)) for i in numbers], policy="prefix")
    theirs = run([answer(i, 0.02 * (1 + i)) for i in numbers], policy="least_loaded")
    ratio = ttft_ratio([ours, theirs], "short", over="least_loaded", under="prefix")
    assert ratio.value == pytest.approx(2.0)
    assert ratio.standard_error == pytest.approx(0.0, abs=1e-9)


def test_noise_increases_the_standard_error() -> None:
    numbers = range(4 * BATCH)
    ours = run([answer(i, 0.1) for i in numbers], policy="prefix")
    theirs = run([answer(i, 0.1 + 0.1 * (i // BATCH % 2)) for i in numbers], policy="least_loaded")
    ratio = ttft_ratio([ours, theirs], "short", over="least_loaded", under="prefix")
    assert ratio.value == pytest.approx(1.5)
    assert 0.2 < ratio.standard_error < 0.4


def test_only_goals_that_were_measured_are_judged() -> None:
    assert goals([run([answer(0)], workload="shared_system")]) == {}


def test_multi_turn_goals_compare_with_the_oracle_and_the_best_other_policy() -> None:
    ours = run([answer(0, 0.1, cached_tokens=512)], "multi_turn", "prefix", most_cached=512)
    theirs = run([answer(0, 0.2)], "multi_turn", "random", most_cached=512)
    judged = goals([ours, theirs])
    assert judged["multi_turn_cached_of_oracle"] == {"figure": 1.0, "at_least": 0.97, "met": True}
    assert judged["multi_turn_mean_ttft_of_best_other"]["figure"] == 0.5
    assert judged["multi_turn_p90_ttft_of_best_other"]["met"]


def test_a_hot_replica_misses_its_goal() -> None:
    judged = goals([run([answer(i, replica="r0") for i in range(4)], workload="hot_prefix")])
    assert not judged["hot_prefix_most_requests_over_mean"]["met"]


def test_goals_without_reuse_compare_with_least_loaded() -> None:
    ours = run([answer(i, 0.2) for i in range(16)], "no_reuse", "prefix")
    theirs = run([answer(i, 0.1) for i in range(16)], "no_reuse", "least_loaded")
    judged = goals([ours, theirs])["no_reuse_ttft_least_loaded_over_prefix"]
    assert judged == {"figure": 0.5, "at_least": 0.98, "met": False, "standard_error": 0.0}


def test_the_figures_of_a_policy_have_its_times_in_ms_and_count_its_failures() -> None:
    ours = run([answer(i, 0.3, replica="r0") for i in range(4)], workload="hot_prefix")
    (told,) = figures(summaries([dataclasses.replace(ours, failures=("503",))])).values()
    assert told["ttft_ms"] == {"mean": 300.0, "p50": 300.0, "p90": 300.0}
    assert (told["requests"], told["failures"], told["requests_max_over_mean"]) == (4, 1, 4.0)


def test_failed_lookups_add_up() -> None:
    runs = [dataclasses.replace(run([answer(0)], seed=seed), lookups_failed=2) for seed in (1, 2)]
    assert only(*runs).lookups_failed == 4
