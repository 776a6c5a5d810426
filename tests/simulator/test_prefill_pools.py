"""Fleets in which another pool computes prompts, behind the scheduler of production."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from autoscaling.slo import Slo
from simulator.cache.kv_tiers import TierSettings
from simulator.engines import Hardware
from simulator.simulation import run
from simulator.traces import Request, Trace
from simulator.types import FleetSettings, PrefillPool, Result
from tests.simulator.conversations import BLOCK_TOKENS

HARDWARE = Hardware(prefill_rate=2000.0, step_s=0.01, step_tokens=1024, sequences=32, blocks=4000)
TIERS = TierSettings(host_tokens=200_000, peers=True, peer_load_rate=20_000.0)
POOL = FleetSettings(HARDWARE, 20.0, Slo(300.0), max_replicas=4, tiers=TIERS)


def split(*, always: bool, replicas: int = 1) -> FleetSettings:
    return replace(POOL, prefill=PrefillPool(HARDWARE, replicas, TIERS, always))


def long_prompts(rate: float, seconds: float = 120.0) -> Trace:
    """Prompts of 1,600 tokens that share nothing, with answers of 60."""
    rng, requests, at = random.Random(1), list[Request](), 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        blocks = tuple(len(requests) << 20 | i for i in range(1600 // BLOCK_TOKENS))
        requests.append(Request(at, 1600, 60, blocks))
    return Trace("long prompts", tuple(requests), seconds, BLOCK_TOKENS)


def share_of_prefill(result: Result) -> float:
    chosen = [call.attempt.chosen for call in result.calls if call.attempt is not None]
    return fmean(one is not None and one.prefills_elsewhere for one in chosen)


def test_prompts_of_another_pool_do_not_delay_running_answers() -> None:
    trace = long_prompts(rate=0.9)
    together = run(trace, POOL, "fixed:2")
    apart = run(trace, split(always=True), "fixed:1")
    assert apart.average_replicas == pytest.approx(2.0)
    assert share_of_prefill(apart) == 1.0
    assert all(call.ended_at is not None for call in apart.calls)
    slowest = [max(call.tpot for call in result.calls) for result in (together, apart)]
    assert slowest[1] < 0.5 * slowest[0]
    # what it costs: all prompts wait for one engine
    assert fmean(call.ttft for call in apart.calls) > fmean(call.ttft for call in together.calls)


def test_a_prompt_is_computed_in_the_other_pool_if_that_takes_less_time() -> None:
    idle = run(long_prompts(rate=0.05), split(always=False), "fixed:1")
    assert share_of_prefill(idle) < 0.2
    trace = long_prompts(rate=1.5)
    alone, busy = run(trace, POOL, "fixed:1"), run(trace, split(always=False), "fixed:1")
    assert 0.2 < share_of_prefill(busy) < 0.8
    assert fmean(call.ttft for call in busy.calls) < 0.5 * fmean(c.ttft for c in alone.calls)


def test_a_removed_replica_costs_no_request_whose_prompt_is_being_computed() -> None:
    settings = replace(split(always=True), initial_replicas=4, min_replicas=1)
    result = run(long_prompts(rate=0.5), settings, "antefix")
    assert all(call.ended_at is not None for call in result.calls)
    assert share_of_prefill(result) > 0.9


def test_a_trace_without_hashes_of_prompts_has_nothing_to_pull() -> None:
    trace = long_prompts(rate=0.5)
    bare = tuple(replace(request, blocks=()) for request in trace.requests)
    result = run(replace(trace, requests=bare, block_tokens=None), split(always=True), "fixed:1")
    assert share_of_prefill(result) == 0.0
