"""What is counted of whole requests, and which promises they kept."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from prometheus_client import generate_latest

from observability.alerts.slo_file import Throughput
from observability.metrics.families import Families
from observability.metrics.request_metrics import (
    AT_ONCE,
    NAMES_TOLD,
    OTHERS,
    Prices,
    Promise,
    RequestMetrics,
)
from observability.traces.request_record import AnswerEnd, RequestFacts, RequestRecord
from tests.fakes.front import samples_of

OBJECTIVES = {"interactive": {"ttft": 0.5, "ttft_p50": 0.1, "tpot": 0.05, "e2e": 8.0}}
PRICES = Prices(prompt=2.0, cached=0.5, output=8.0)
# Facts of a request's end; the others are of its record.
ENDING = {field.name for field in fields(AnswerEnd)}


class Counted:
    def __init__(self, names_told: int = NAMES_TOLD) -> None:
        self.families = Families()
        promises = {"main": Promise(OBJECTIVES, PRICES), "small": Promise()}
        self.of = RequestMetrics(self.families, promises, names_told=names_told)

    def serve(self, **facts: Any) -> float | None:
        """Begin, answer and end a request with these facts. Return its TPOT."""
        ending = {name: facts.pop(name) for name in ENDING & facts.keys()}
        record, end = record_of(**facts), AnswerEnd(**{"duration_s": 0.0, **ending})
        self.of.begun(record)
        if record.ttft_s is not None:
            self.of.first_token(record)
        self.of.ended(record, end)
        return record.tpot_s(end)

    @property
    def samples(self) -> dict[tuple[str, ...], float]:
        """As `samples_of`, of the first pool and of what has none."""
        self.of.refresh(0.0)
        lines = generate_latest(self.families.registry).decode().splitlines(keepends=True)
        return samples_of("".join(line for line in lines if 'pool="small"' not in line))

    def events(self, objective: str, priority: str = "interactive") -> tuple[float, float]:
        """Good, bad."""
        samples = self.samples
        good, bad = (
            samples["antefix_slo_events_total", objective, priority, result]
            for result in ("good", "bad")
        )
        return good, bad


def record_of(**facts: Any) -> RequestRecord:
    fixed = {
        field.name: facts.pop(field.name) for field in fields(RequestFacts) if field.name in facts
    }
    about = {"request_id": "id", "tenant": "tenant", "path": "/v1/completions", "pool": "main"}
    return RequestRecord(
        RequestFacts(**{**about, **fixed}), **{"arrived": 0.0, "served_by": "main", **facts}
    )


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_request_within_every_objective_meets_each_slo(counted: Counted) -> None:
    counted.serve(outcome="ok", ttft_s=0.1, duration_s=0.5, output_tokens=9)
    for objective in ("ttft", "ttft_p50", "tpot", "e2e", "availability", "goodput"):
        assert counted.events(objective) == (1, 0), objective


def test_a_late_first_token_misses_the_ttft_slo_and_the_goodput(counted: Counted) -> None:
    counted.serve(outcome="ok", ttft_s=0.6, duration_s=0.7, output_tokens=9)
    assert counted.events("ttft") == counted.events("goodput") == (0, 1)
    assert counted.events("tpot") == counted.events("availability") == (1, 0)


def test_a_ttft_above_the_median_objective_does_not_lower_the_goodput(counted: Counted) -> None:
    counted.serve(outcome="ok", ttft_s=0.3, duration_s=0.5, output_tokens=9)
    assert counted.events("ttft_p50") == (0, 1)
    assert counted.events("goodput") == (1, 0)


def test_a_slow_stream_misses_its_tpot_slo(counted: Counted) -> None:
    tpot_s = counted.serve(outcome="ok", ttft_s=0.1, duration_s=1.1, output_tokens=11)
    assert tpot_s == pytest.approx(0.1)
    assert counted.events("tpot") == counted.events("goodput") == (0, 1)


def test_an_answer_that_ends_too_late_misses_only_its_e2e_slo(counted: Counted) -> None:
    counted.serve(outcome="ok", ttft_s=0.1, duration_s=8.1, output_tokens=1000)
    assert counted.events("e2e") == counted.events("goodput") == (0, 1)
    assert counted.events("ttft") == counted.events("tpot") == (1, 0)


@pytest.mark.parametrize("outcome", ["failed", "deadline", "cancelled"])
def test_an_incomplete_answer_misses_its_e2e_slo_once_the_time_has_passed(
    counted: Counted, outcome: str
) -> None:
    counted.serve(outcome=outcome, ttft_s=0.1, duration_s=7.9)
    assert counted.events("e2e") == (0, 0)
    counted.serve(outcome=outcome, ttft_s=0.1, duration_s=8.1)
    assert counted.events("e2e") == (0, 1)


@pytest.mark.parametrize("outcome", ["invalid", "rejected"])
def test_a_rejected_request_does_not_miss_its_e2e_slo(counted: Counted, outcome: str) -> None:
    counted.serve(outcome=outcome, duration_s=8.1)
    assert counted.events("e2e") == (0, 0)


@pytest.mark.parametrize(
    ("status", "outcome", "available", "goodput"),
    [
        (400, "invalid", (0, 0), (0, 0)),
        (429, "rejected", (0, 0), (0, 1)),
        (500, "failed", (0, 1), (0, 1)),
        (503, "failed", (0, 1), (0, 1)),
        (504, "deadline", (0, 1), (0, 1)),
    ],
)
def test_only_server_errors_count_against_availability_and_goodput(
    counted: Counted,
    status: int,
    outcome: str,
    available: tuple[float, float],
    goodput: tuple[float, float],
) -> None:
    record = record_of(served_by="")
    counted.of.begun(record)
    counted.of.ended(record, AnswerEnd.rejected(0.0, status, "some_code"))
    assert counted.samples["antefix_requests_total", outcome, "interactive"] == 1
    assert counted.samples["antefix_errors_total", "some_code"] == 1
    assert counted.events("availability") == available
    assert counted.events("goodput") == goodput


@pytest.mark.parametrize(
    ("ttft_s", "duration_s", "goodput"),
    [
        *((None, 0.4, (0, 0)), (None, 0.6, (0, 1)), (0.4, 7.0, (0, 0)), (0.6, 7.0, (0, 1))),
        (0.4, 9.0, (0, 1)),
    ],
)
def test_a_client_that_leaves_lowers_the_goodput_only_after_its_slo_was_missed(
    counted: Counted, ttft_s: float | None, duration_s: float, goodput: tuple[float, float]
) -> None:
    counted.serve(outcome="cancelled", ttft_s=ttft_s, duration_s=duration_s)
    assert counted.events("goodput") == goodput
    assert counted.events("availability") == (0, 0)


def test_a_client_that_leaves_does_not_count_against_availability(counted: Counted) -> None:
    counted.serve(ttft_s=0.1)
    assert counted.samples["antefix_requests_total", "cancelled", "interactive"] == 1
    assert counted.events("availability") == counted.events("goodput") == (0, 0)


def test_a_failed_key_is_counted_without_a_pool(counted: Counted) -> None:
    record = record_of(pool="", served_by="", tenant="")
    counted.of.ended(record, AnswerEnd.rejected(0.0, 401, "invalid_api_key"))
    assert counted.samples["antefix_errors_total", "invalid_api_key"] == 1
    assert not any(name[0] == "antefix_tenant_requests_total" for name in counted.samples)


def test_an_overflowed_request_counts_for_the_slos_of_the_pool_that_it_left(
    counted: Counted,
) -> None:
    counted.serve(served_by="small", outcome="ok", ttft_s=0.6, duration_s=1.0, output_tokens=3)
    counted.of.refresh(0.0)
    text = generate_latest(counted.families.registry).decode()
    assert 'antefix_ttft_seconds_count{pool="small",priority="interactive"} 1.0' in text
    assert counted.events("ttft") == (0, 1)


def test_goodput_of_a_class_without_objectives_counts_answered_requests(counted: Counted) -> None:
    counted.serve(priority="batch", outcome="ok", ttft_s=100.0, duration_s=200.0)
    assert counted.events("goodput", "batch") == (1, 0)
    assert ("antefix_slo_events_total", "ttft", "batch", "good") not in counted.samples


def test_a_tenant_pays_less_for_what_was_cached(counted: Counted) -> None:
    counted.serve(
        outcome="ok", prompt_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000
    )
    assert counted.samples["antefix_tenant_cost_total", "tenant"] == pytest.approx(1.2 + 0.2 + 0.8)
    for kind, tokens in (("prompt", 1e6), ("cached", 4e5), ("output", 1e5)):
        assert counted.samples["antefix_tenant_tokens_total", kind, "tenant"] == tokens


def test_former_tenants_leave_no_permanent_metric_series() -> None:
    counted = Counted(names_told=3)
    for number in (0, 1, 2, 3, 4, 1):
        counted.serve(outcome="ok", tenant=f"tenant {number}", prompt_tokens=10)
    found = counted.samples
    requests = {key[2]: n for key, n in found.items() if key[0] == "antefix_tenant_requests_total"}
    assert requests == {"tenant 0": 1, "tenant 1": 2, "tenant 2": 1, OTHERS: 2}
    assert found["antefix_tenant_tokens_total", "prompt", OTHERS] == 20
    costs = {key[1] for key in found if key[0] == "antefix_tenant_cost_total"}
    assert costs == requests.keys()


def test_a_request_counts_for_the_model_that_was_asked_for() -> None:
    counted = Counted(names_told=2)
    for model in ("assistant", "sql", "new", "old"):
        adapter = "sql-2" if model == "sql" else ""
        counted.serve(model=model, adapter=adapter, prompt_tokens=10, output_tokens=1, outcome="ok")
    counted.serve(outcome="failed", model="sql", adapter="sql-3")
    found = counted.samples
    requests = {key[1:]: n for key, n in found.items() if key[0] == "antefix_model_requests_total"}
    assert requests == {
        ("", "assistant", "ok"): 1,
        ("sql-2", "sql", "ok"): 1,
        (OTHERS, "sql", "failed"): 1,  # the set has two names, and one is that of no adapter
        ("", OTHERS, "ok"): 2,
    }
    assert found["antefix_model_tokens_total", "", "prompt", OTHERS] == 20
    assert found["antefix_model_tokens_total", "sql-2", "output", "sql"] == 1


def test_a_throughput_floor_is_exported_until_it_is_withdrawn() -> None:
    families = Families()
    floor = Throughput(tokens_per_s=500, running=50)
    of = RequestMetrics(families, {"main": Promise(throughput=floor), "small": Promise()})

    def told() -> dict[str, str]:
        lines = generate_latest(families.registry).decode().splitlines()
        prefix = "antefix_throughput_floor_"
        found = [line for line in lines if line.startswith(prefix)]
        return dict(line.removeprefix(prefix).split(" ") for line in found)

    expected = {'running_requests{pool="main"}': "50.0", 'tokens_per_second{pool="main"}': "500.0"}
    assert told() == expected
    of.promise({"main": Promise()})
    assert told() == dict.fromkeys(expected, "NaN")


def test_the_share_of_gpu_memory_is_exported_until_it_is_withdrawn() -> None:
    families = Families()
    of = RequestMetrics(families, {"main": Promise(gpu_memory=0.9), "cpu": Promise()})

    def exported() -> list[str]:
        lines = generate_latest(families.registry).decode().splitlines()
        return [line for line in lines if line.startswith("antefix_gpu_memory_share_ratio{")]

    assert exported() == ['antefix_gpu_memory_share_ratio{pool="main"} 0.9']
    of.promise({"main": Promise()})
    assert exported() == ['antefix_gpu_memory_share_ratio{pool="main"} NaN']


def test_the_queue_counts_requests_without_a_first_token_and_the_age_of_the_oldest(
    counted: Counted,
) -> None:
    first, second, served = (record_of(arrived=at) for at in (1.0, 2.0, 0.0))
    served.ttft_s = 0.1
    for record in (served, first, second):
        counted.of.begun(record)
    counted.of.refresh(4.0)
    text = generate_latest(counted.families.registry).decode()
    assert 'antefix_queue_requests{pool="main"} 2.0' in text
    assert 'antefix_queue_oldest_seconds{pool="main"} 3.0' in text
    for record in (served, first, second):
        counted.of.ended(record, AnswerEnd(0.0))
    counted.of.refresh(5.0)
    text = generate_latest(counted.families.registry).decode()
    assert 'antefix_queue_requests{pool="main"} 0.0' in text


def test_requests_between_two_refreshes_are_counted_once(counted: Counted) -> None:
    for _ in range(3 * AT_ONCE + 1):
        pieces_at = [0.05 * number for number in range(9)]
        answer = {"ttft_s": 0.1, "duration_s": 0.5, "output_tokens": 9, "pieces_at": pieces_at}
        counted.serve(outcome="ok", **answer)
    for _ in range(2):
        samples = counted.samples
        assert samples["antefix_requests_total", "ok", "interactive"] == 3 * AT_ONCE + 1
        assert samples["antefix_ttft_seconds_count", "interactive"] == 3 * AT_ONCE + 1
        assert samples["antefix_inter_token_latency_seconds_count",] == 8 * (3 * AT_ONCE + 1)


def test_the_traffic_history_counts_the_same_outcomes_as_the_metrics(counted: Counted) -> None:
    tokens = {"prompt_tokens": 30, "cached_tokens": 10, "output_tokens": 9}
    counted.serve(outcome="ok", ttft_s=0.1, duration_s=0.5, **tokens)
    counted.serve(outcome="ok", ttft_s=0.6, duration_s=0.7, served_by="small", output_tokens=9)
    counted.serve(outcome="invalid", status=400)
    counted.serve(outcome="failed", pool="", served_by="")
    counted.of.refresh(0.0)
    main, small = (counted.of.traffic.of(pool, None).total() for pool in ("main", "small"))
    assert main == {"ok": 1, "invalid": 1, "good": 1, **tokens}
    # against the objectives of the pool that overflowed
    assert small == {"ok": 1, "bad": 1, "output_tokens": 9}
    assert counted.of.traffic.of("main", "tenant").total() == main
