"""Figures of requests whose times are known are known."""

from __future__ import annotations

import pytest

from loadgen.summary import LatencySlo, cached_ratio, distribution, summary, tail_of, tpot_s
from tests.loadgen.requests_made import answered, failed

REQUESTS = [
    answered(0.0, 1.0, 1.5, 2.0, prompt_tokens=100, output_tokens=3, cached_tokens=0),
    answered(1.0, 3.0, 4.0, prompt_tokens=300, output_tokens=5, cached_tokens=256),
    failed(2.0, 10.0, "http_503", "no engine"),
    failed(3.0, 3.5, "http_503", "none either"),
    failed(4.0, 4.5, "timeout"),
]


def test_a_summary_adds_up_all_requests_of_a_run() -> None:
    found = summary(REQUESTS, LatencySlo())
    assert (found["requests"], found["completed"]) == (5, 2)
    assert found["duration_s"] == 10.0
    assert found["requests_per_s"] == 0.2
    assert (found["prompt_tokens"], found["output_tokens"]) == (400, 8)
    assert found["output_tokens_counted_by"] == "server"
    assert found["output_tokens_per_s"] == 0.8
    assert found["cached_ratio"] == 0.64
    assert found["goodput"] is None
    assert list(found["errors"].items()) == [
        ("http_503", {"count": 2, "first": "no engine"}),
        ("timeout", {"count": 1, "first": ""}),
    ]


def test_latencies_include_only_complete_answers() -> None:
    found = summary(REQUESTS, LatencySlo())
    assert (found["ttft_s"]["mean"], found["ttft_s"]["max"]) == (1.5, 2.0)
    # 1 s for two tokens after the first, 1 s for four
    assert (found["tpot_s"]["mean"], found["tpot_s"]["max"]) == (0.375, 0.5)
    assert (found["gap_s"]["p50"], found["gap_s"]["max"]) == (0.5, 1.0)
    assert (found["e2e_s"]["p50"], found["e2e_s"]["p90"]) == (2.5, 2.9)


@pytest.mark.parametrize(("figures", "has"), [(299, False), (300, True)])
def test_no_p99_is_reported_for_fewer_than_300_samples(figures: int, has: bool) -> None:
    found = distribution(map(float, range(figures)))
    assert found is not None
    assert ("p99" in found) is has
    assert tail_of(found) == ((99, found["p99"]) if has else (90, found["p90"]))


@pytest.mark.parametrize(
    ("slo", "held"),
    [
        (LatencySlo(ttft_s=1.0), 1),
        (LatencySlo(ttft_s=2.0), 2),
        (LatencySlo(tpot_s=0.25), 1),
        (LatencySlo(ttft_s=1.0, tpot_s=0.25), 0),
        (LatencySlo(ttft_s=2.0, tpot_s=0.5, e2e_s=3.0), 2),
        (LatencySlo(e2e_s=2.5), 1),
    ],
)
def test_goodput_counts_only_successful_requests_that_met_every_objective(
    slo: LatencySlo, held: int
) -> None:
    goodput = summary(REQUESTS, slo)["goodput"]
    assert (goodput["requests"], goodput["share"]) == (held, held / 5)
    assert goodput["requests_per_s"] == held / 10.0


def test_an_answer_of_one_token_has_no_tpot_and_cannot_miss_its_tpot_slo() -> None:
    one = answered(0.0, 1.0, output_tokens=1)
    assert tpot_s(one) is None
    assert LatencySlo(tpot_s=0.001).is_held(one)
    assert summary([one], LatencySlo())["tpot_s"] is None


def test_an_answer_without_tokens_misses_the_ttft_slo() -> None:
    silent = answered(0.0, 1.0, token_times_s=(), output_tokens=0)
    assert not LatencySlo(ttft_s=100.0).is_held(silent)


def test_stream_events_are_counted_if_the_server_reports_no_token_count() -> None:
    found = summary([answered(0.0, 1.0, 1.5, 2.0)], LatencySlo())
    assert (found["output_tokens"], found["output_tokens_counted_by"]) == (3, "events")
    assert found["tpot_s"]["mean"] == 0.5
    assert (found["prompt_tokens"], found["cached_ratio"]) == (None, None)


def test_requests_without_cached_tokens_are_left_out_of_the_ratio() -> None:
    silent = answered(0.0, 1.0, prompt_tokens=1000)
    assert cached_ratio([*REQUESTS[:2], silent]) == 0.64


def test_an_empty_sample_has_no_distribution() -> None:
    assert distribution([None, None]) is None
