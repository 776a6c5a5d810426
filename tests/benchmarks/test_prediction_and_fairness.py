"""What the benchmarks of predictions and of fair shares make of what they measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fairness.run import Beside, goals_of
from benchmarks.harness.load.conversation_player import Answer
from benchmarks.harness.load.trace_player import ReplayedRequest
from benchmarks.prediction.run import alone_of, errors, figures_of


def answer(predicted_s: float | None, took_s: float | None) -> Answer:
    return Answer("talk", 0, 0.0, 0.0, 1.0, 2.0, "r0", 10, 0, 0, predicted_s, took_s)


def test_an_error_is_relative_to_the_measured_value_and_signed() -> None:
    assert errors([answer(1.5, 1.0), answer(0.5, 1.0)]) == [0.5, -0.5]
    # nothing was predicted, or nothing was measured
    assert errors([answer(None, 1.0), answer(1.0, None)]) == []


def test_figures_summarize_absolute_errors_and_the_mean_error() -> None:
    found = figures_of([answer(1.0 + 0.1 * i, 1.0) for i in range(-5, 6)])
    assert found["requests"] == 11
    assert found["mean_absolute_error"] == pytest.approx(3.0 / 11, abs=1e-4)
    assert found["mean_error"] == pytest.approx(0.0)
    assert found["p90_absolute_error"] == pytest.approx(0.5)


def test_an_answer_counts_as_alone_if_no_other_is_in_flight() -> None:
    first = replace(answer(1.0, 1.0), started=0.0, first_byte=1.0, ended=2.0)
    into_its_decoding = replace(first, turn=1, started=1.5, first_byte=2.5, ended=3.0)
    when_all_is_over = replace(first, turn=2, started=3.0, first_byte=4.0, ended=5.0)
    together = [first, into_its_decoding, when_all_is_over]
    assert alone_of(together) == [first, when_all_is_over]
    assert alone_of([first, replace(first, turn=1)]) == []


def test_a_tenant_is_reported_with_its_rejected_requests() -> None:
    own = [
        ReplayedRequest(float(i), 200, 0.1 * i, gateway_ttft=0.01 * i, sent_late=0.001 * i)
        for i in range(10)
    ]
    refused, broken = ReplayedRequest(10.0, 429), ReplayedRequest(11.0, 0)
    others = [ReplayedRequest(0.0, 200, ttft=1.0), ReplayedRequest(0.0, 429)]
    told = Beside([[*own[:5], refused], [*own[5:], broken]], others).figures()
    assert (told["requests"], told["refused"], told["failed"]) == (12, 1, 1)
    assert told["tail"] == "p90"
    assert (told["ttft_p50_s"], told["ttft_tail_s"]) == (0.45, 0.81)
    assert told["ttft_tail_s_of_each_round"] == [0.36, 0.86]
    assert (told["ttft_tail_s_at_the_gateway"], told["sent_late_tail_s"]) == (0.081, 0.008)
    assert (told["others_offered"], told["others_served"]) == (2, 1)


def test_a_seed_of_fewer_than_300_requests_has_no_p99() -> None:
    own = [ReplayedRequest(float(i), 200, float(i)) for i in range(101)]
    told = Beside([own] * 3, []).figures()
    assert told["tail"] == "p99"
    assert told["tail_of_each_round"] == "p90"
    assert told["ttft_tail_s_of_each_round"] == [90.0] * 3


def test_a_flood_is_compared_with_a_full_pool_and_a_dedicated_pool() -> None:
    def kind(*ttfts: float, refused: int = 0) -> dict[str, object]:
        rounds = [[ReplayedRequest(0.0, 200, ttft)] for ttft in ttfts]
        return {**Beside(rounds).figures(), "refused": refused}

    judged = goals_of(
        {
            "alone": kind(0.5, 0.5, 0.5),
            "full": kind(1.0, 1.0, 1.0, refused=3),
            "flooded": kind(0.9, 1.2, 1.3),
        }
    )
    full = judged["tail_ttft_beside_a_flood_of_that_in_a_full_pool"]
    assert (full["figure"], full["range"], full["met"]) == (1.2, [0.9, 1.3], False)
    assert judged["tail_ttft_beside_a_flood_of_that_alone"]["figure"] == 2.4
    # a full pool is offered its capacity: what it refuses counts as well
    assert (judged["refused"]["figure"], judged["refused"]["met"]) == (3, False)
