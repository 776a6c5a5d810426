"""A trace played under a policy: nothing is lost, and the same gives the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.admission.overflow import OverflowRules
from autoscaling.slo import Slo
from simulator.engines import Hardware
from simulator.simulation import run
from simulator.traces import Request, Trace
from simulator.types import FleetSettings, OverflowPool, Result

HARDWARE = Hardware(prefill_rate=1000.0, step_s=0.02, step_tokens=500, sequences=8, blocks=1000)
POOL = FleetSettings(
    hardware=HARDWARE, startup_s=20.0, slo=Slo(2.0), min_replicas=1, max_replicas=4
)
OVERFLOW = OverflowPool(
    Hardware(prefill_rate=4000.0, sequences=8, blocks=1000), 1, OverflowRules(max_share=1.0)
)
POLICIES = (
    "antefix",
    "fixed:2",
    "all-at:10",
    "serve-default",
    "serve-default:0.5",
    "serve-default+antefix-routing",
    "hpa-waiting:1",
    "keda-concurrency:4",
    "hpa-concurrency:4+antefix-routing",
)


def steady(requests: int, every_s: float, prompt: int = 400, answer: int = 10) -> Trace:
    asked = tuple(Request(i * every_s, prompt, answer) for i in range(requests))
    return Trace("steady", asked, requests * every_s)


def kinds(result: Result) -> list[str]:
    """What became of each request; fails for one that is nothing or two things."""
    found = []
    for call in result.calls:
        served = call.ended_at is not None
        assert served == (call.first_at is not None) == (call.replica is not None)
        assert served != (call.rejected_at is not None)
        if served:
            assert call.ended_at is not None
            assert call.first_at is not None
            assert call.request.at < call.first_at <= call.ended_at
        found.append("rejected" if not served else "overflow" if call.overflowed else "served")
    return found


arrivals = st.lists(
    st.tuples(st.floats(0, 60), st.integers(1, 2000), st.integers(1, 60), st.booleans()),
    max_size=40,
)


@given(arrivals, st.sampled_from(POLICIES), st.booleans(), st.integers(0, 1))
def test_every_request_is_served_rejected_or_overflowed_exactly_once(
    asked: list[tuple[float, int, int, bool]], policy: str, overflow: bool, min_replicas: int
) -> None:
    requests = tuple(
        Request(at, prompt, answer, priority="batch" if batch else "interactive")
        for at, prompt, answer, batch in sorted(asked)
    )
    pool = replace(
        POOL,
        min_replicas=max(min_replicas, policy.startswith(("serve", "hpa"))),
        overflow=OVERFLOW if overflow else None,
        batch_slo=Slo(30.0),
        batch_queue=5,
    )
    result = run(Trace("any", requests, 60.0), pool, policy)
    found = kinds(result)
    assert len(found) == len(requests)
    if policy in ("serve-default", "serve-default:0.5", "hpa-waiting:1", "keda-concurrency:4"):
        assert {*found} <= {"served"}
    if not overflow:
        assert "overflow" not in found
    assert result.replica_seconds >= 0.0
    assert all(sample.paid >= sample.serving >= sample.active for sample in result.samples)
    if not policy.startswith("fixed"):
        assert all(pool.min_replicas <= s.target <= pool.max_replicas for s in result.samples)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_trace_and_settings_give_the_same_result(policy: str) -> None:
    trace = steady(100, 0.3)
    first, second = run(trace, POOL, policy), run(trace, POOL, policy)
    assert [call.first_at for call in first.calls] == [call.first_at for call in second.calls]
    assert first.samples == second.samples
    assert first.replica_seconds == second.replica_seconds


def test_fixed_replicas_are_paid_for_from_the_beginning_to_the_last_answer() -> None:
    result = run(steady(10, 1.0), POOL, "fixed:3")
    assert result.seconds >= 10.0
    assert result.replica_seconds == 3 * result.seconds
    assert result.average_replicas == 3.0
    assert result.attainment == 1.0


def test_a_request_that_cannot_meet_the_slo_is_rejected_and_a_miss() -> None:
    # three times what one replica can compute
    result = run(steady(120, 0.15), POOL, "fixed:1")
    found = kinds(result)
    assert found.count("rejected") > 40
    assert result.attainment <= found.count("served") / len(found)


def test_a_request_that_cannot_meet_the_slo_overflows_and_is_a_miss() -> None:
    result = run(steady(120, 0.15), replace(POOL, overflow=OVERFLOW), "fixed:1")
    found = kinds(result)
    assert found.count("overflow") > 40
    assert result.attainment <= found.count("served") / len(found)


def test_batch_requests_queue_and_meet_a_separate_slo() -> None:
    trace = steady(40, 0.3).with_batch(1.0)
    pool = replace(POOL, batch_slo=Slo(60.0), batch_queue=100)
    result = run(trace, pool, "fixed:1")
    assert {*kinds(result)} == {"served"}
    assert max(call.ttft for call in result.calls) > POOL.slo.ttft_s
    assert result.attainment == 1.0


def test_without_admission_everything_queues() -> None:
    result = run(steady(120, 0.15), replace(POOL, max_replicas=1), "serve-default")
    assert {*kinds(result)} == {"served"}
    assert max(call.ttft for call in result.calls) > 10.0


def test_ray_serve_scaling_behind_antefix_gateway_scales_the_same_and_rejects_requests() -> None:
    trace = steady(400, 0.15)
    whole = run(trace, POOL, "serve-default")
    routed = run(trace, POOL, "serve-default+antefix-routing")
    assert "rejected" not in kinds(whole)
    assert "rejected" in kinds(routed)
    # the same delay, then as many replicas as there may be
    assert [s.target for s in whole.samples[:45]] == [s.target for s in routed.samples[:45]]


def test_a_warm_replica_is_promoted_by_the_request_that_needs_it() -> None:
    # Nothing for a while, so that demand falls to one; then too much for one at once.
    burst = tuple(Request(200.0 + i / 100, 900, 5) for i in range(8))
    trace = Trace("burst", (Request(0.0, 10, 1), *burst), 220.0)
    cold = run(trace, POOL, "antefix")
    warm = run(trace, replace(POOL, warm_replicas=1), "antefix")
    before, after = (next(s for s in warm.samples if s.at >= at) for at in (199.0, 201.0))
    assert (before.active, before.serving) == (1, 2)
    assert after.active == 2
    assert warm.attainment > cold.attainment


def test_a_shared_prefix_is_computed_once() -> None:
    prefix = tuple(range(20))
    asked = tuple(Request(2.0 * i, 330, 2, prefix) for i in range(5))
    result = run(Trace("shared", asked, 10.0, block_tokens=16), POOL, "fixed:2")
    assert result.calls[0].ttft > 0.3
    assert max(call.ttft for call in result.calls[1:]) < 0.1


def test_an_slo_may_also_bound_the_time_per_token() -> None:
    strict = replace(POOL, slo=Slo(2.0, tpot_s=0.001))
    assert run(steady(5, 1.0), POOL, "fixed:1").attainment == 1.0
    assert run(steady(5, 1.0), strict, "fixed:1").attainment == 0.0


def test_all_replicas_are_requested_at_the_second_that_the_policy_names() -> None:
    cliff = Trace("cliff", tuple(Request(30.0 + i / 4, 400, 10) for i in range(200)), 90.0)
    asked = run(cliff, POOL, "all-at:30")
    assert [sample.target for sample in asked.samples[28:32]] == [1, 1, 4, 4]
    assert 0.0 < asked.attainment < 1.0


@pytest.mark.parametrize(
    "policy",
    [
        "antefix:2",
        "fixed",
        "fixed:0",
        "fixed:x",
        "serve-default:-1",
        "serve-default:inf",
        "serve-default:x",
        "fixed:2+antefix-routing",
        "antefix+antefix-routing",
        "serve-default:",
        "hpa-waiting",
        "keda-cpu:2",
        "all-at:x",
        "all-at:10+antefix-routing",
        "best",
    ],
)
def test_a_policy_that_does_not_exist_is_named(policy: str) -> None:
    with pytest.raises(ValueError, match="unknown policy"):
        run(steady(1, 1.0), POOL, policy)


def test_the_rejection_of_a_request_that_never_fits_states_its_size() -> None:
    with pytest.raises(ValueError, match="16010 tokens do not fit"):
        run(steady(1, 1.0, prompt=16_000), POOL, "fixed:1")
