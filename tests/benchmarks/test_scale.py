"""A fleet in virtual time: what it plays, who chooses, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.harness.results.kept_parts import KeptParts
from benchmarks.scale import published, run, simulate
from benchmarks.scale.choosers import (
    AnyReplica,
    ApproximateTree,
    CacheOracle,
    ConsistentHash,
    ExactAndLoad,
    FewestRequests,
)
from benchmarks.scale.costs import power, sizes_of
from benchmarks.scale.fleet import SimulatedReplicas, VirtualFleet, Visit
from benchmarks.scale.gateways import IndexedGateways
from benchmarks.scale.goals import goals, saturated
from benchmarks.scale.redis_load import CALLS_PER_S, head_room
from benchmarks.scale.results import FleetCase, FleetSummary, as_json, summary, variation
from benchmarks.scale.simulate import CONVERSATIONS, Simulation
from benchmarks.scale.traffic import (
    CHAT_BLOCK_TOKENS,
    EPISODE_S,
    ceiling,
    chats,
    conversations,
    paced,
    shuffled_gateways,
    tokens_of,
)
from loadgen.workloads import WORKLOADS
from simulator.cache.kv_tiers import TierSettings
from simulator.engines import Hardware, Job, SimulatedEngine
from simulator.traces import Request, Trace

BLOCK = 128
HARDWARE = Hardware(block_tokens=BLOCK, blocks=512)
CHAT = conversations(1, 12.0, 8.0)


def request_of_blocks(at: float, *blocks: int) -> Request:
    return Request(at, BLOCK * len(blocks) + 10, 5, blocks)


async def played(
    trace: Trace, replicas: int, gateways: int, url: str, fleet: SimulatedReplicas | None = None
) -> list[Visit]:
    fleet = fleet or SimulatedReplicas(HARDWARE, replicas)
    router = IndexedGateways(url, "bench/test", fleet, gateways, 1)
    try:
        await router.begin()
        to = shuffled_gateways(len(trace.requests), gateways, 1)
        return await VirtualFleet(fleet, router).play(trace.requests, to)
    finally:
        await router.aclose()


def cached(visits: list[Visit]) -> int:
    return sum(visit.job.cached_tokens for visit in visits)


def test_a_paced_trace_has_the_requests_and_the_rate_asked_for() -> None:
    trace = Trace("hand", tuple(request_of_blocks(10.0 + i, i) for i in range(100)), 110.0, BLOCK)
    half = paced(trace, 50, 5.0, seed=1)
    assert len(half.requests) == 50
    assert half.requests[-1].at == pytest.approx(10.0)
    twice = paced(trace, 200, 5.0, seed=1)
    assert len(twice.requests) == 200
    assert len({request.blocks for request in twice.requests}) == 200


def test_a_next_turn_has_the_blocks_of_the_turn_before() -> None:
    assert sum(ceiling(CHAT.requests, BLOCK)) > 0
    assert all(len(request.blocks) == request.prompt_tokens // BLOCK for request in CHAT.requests)


def test_a_published_workload_repeats_each_prompt_after_all_others() -> None:
    requests = published.shared_prefixes(1, 20.0).requests
    before = round(len(requests) * published.warm_up(20.0))
    assert before == published.GROUPS * published.USERS == 750
    assert len(requests) - before == 20 * 38
    assert requests[before].at - requests[before - 1].at >= published.SETTLE_S
    prompts = [request.blocks for request in requests]
    assert len(set(prompts[:before])) == before
    assert prompts[before : before + 10] == prompts[:10]
    # all of a group have only its system prompt in common
    shared = published.SYSTEM_TOKENS // published.BLOCK_TOKENS
    assert len({blocks[:shared] for blocks in prompts}) == published.GROUPS
    assert len({blocks[shared] for blocks in prompts}) == before


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_episode_of_a_workload_begins_with_new_prompts(workload: str) -> None:
    trace = chats(workload, 1, 4.0, episodes=2)
    assert all(one.at <= other.at for one, other in pairwise(trace.requests))
    assert len(trace.requests) == pytest.approx(2 * EPISODE_S * 4.0, rel=0.25)
    first, second = (
        {block for r in trace.requests for block in r.blocks[:1] if (r.at >= EPISODE_S) is late}
        for late in (False, True)
    )
    if workload not in ("short", "multi_turn", "agents"):  # a conversation may go on meanwhile
        assert not first & second
    most = ceiling(trace.requests, CHAT_BLOCK_TOKENS)
    shared = sum(most) / sum(r.prompt_tokens for r in trace.requests)
    assert (shared == 0) is (workload in ("short", "no_reuse"))


def test_equal_blocks_have_equal_tokens() -> None:
    assert tokens_of(2**64 - 1, 16) == tokens_of(2**64 - 1, 16)
    assert tokens_of(1, 16) != tokens_of(2, 16)
    assert len(tokens_of(1, 16)) == 64


async def test_a_simulated_fleet_of_one_behaves_like_its_engine() -> None:
    requests = CHAT.requests[:40]
    fleet = SimulatedReplicas(HARDWARE, 1)
    visits = await VirtualFleet(fleet, AnyReplica(fleet, 1, 1)).play(requests, [0] * 40)
    engine, jobs = SimulatedEngine(HARDWARE), []
    for request in requests:
        engine.advance(request.at)
        jobs.append(Job.hashed("", request.prompt_tokens, request.answer_tokens, request.blocks))
        engine.submit(jobs[-1], request.at)
    engine.advance(float("inf"))
    assert [visit.job.first_at for visit in visits] == [pytest.approx(j.first_at) for j in jobs]
    assert [visit.job.cached_tokens for visit in visits] == [job.cached_tokens for job in jobs]


async def test_gateways_find_the_cached_blocks_of_engines_through_redis(redis_url: str) -> None:
    visits = await played(CHAT, 3, 1, redis_url)
    fleet = SimulatedReplicas(HARDWARE, 3)
    anywhere = await VirtualFleet(fleet, AnyReplica(fleet, 1, 1)).play(
        CHAT.requests, [0] * len(CHAT.requests)
    )
    assert all(visit.ended_at >= visit.request.at for visit in visits)
    most = sum(ceiling(CHAT.requests, BLOCK))
    assert cached(anywhere) < 0.8 * most
    assert cached(visits) > 0.9 * most


async def test_several_gateways_reuse_as_many_tokens_as_one(redis_url: str) -> None:
    assert cached(await played(CHAT, 3, 4, redis_url)) > 0.9 * sum(ceiling(CHAT.requests, BLOCK))


async def test_gateways_find_evicted_blocks_in_tiers_through_redis(redis_url: str) -> None:
    """Each cache holds three prompts, and each host tier holds six."""
    small, tiers = replace(HARDWARE, blocks=80), TierSettings(20_000, disk_tokens=1_000_000)
    fleet = SimulatedReplicas(small, 3, tiers)
    visits = await played(CHAT, 3, 2, redis_url, fleet)
    assert cached(visits) > 0.9 * sum(ceiling(CHAT.requests, BLOCK))
    for medium in ("host", "disk"):
        assert any(getattr(of.load()["pace"], f"{medium}_load_rate") for of in fleet.engines)


def fleet_of(*requests: int) -> SimulatedReplicas:
    fleet = SimulatedReplicas(HARDWARE, len(requests))
    fleet.requests = list(requests)
    return fleet


def test_least_loaded_takes_the_replica_with_the_fewest_requests() -> None:
    assert FewestRequests(fleet_of(2, 1, 3), 1, 1).choice(request_of_blocks(0.0, 7), 0) == 1


def test_consistent_hashing_keeps_a_prefix_at_one_replica_until_that_is_full() -> None:
    fleet = fleet_of(0, 0, 0, 0)
    ring = ConsistentHash(fleet, 1, 1)
    first = {ring.choice(request_of_blocks(0.0, 7, other), 0) for other in range(20)}
    assert len(first) == 1
    [replica] = first
    fleet.requests = [3 if number == replica else 1 for number in range(4)]
    assert ring.choice(request_of_blocks(0.0, 7), 0) != replica


def test_an_approximate_tree_knows_only_prompts_from_the_same_gateway() -> None:
    tree = ApproximateTree(fleet_of(0, 0, 0, 0), 2, 1)
    sent = tree.choice(request_of_blocks(0.0, 1, 2, 3), 0)
    again = {tree.choice(request_of_blocks(0.0, 1, 2, 3, 4), 0) for _ in range(10)}
    assert again == {sent}
    elsewhere = {tree.choice(request_of_blocks(0.0, number, 1, 2), 1) for number in range(50, 54)}
    assert elsewhere == {0, 1, 2, 3}


def test_an_oracle_chooses_the_replica_with_the_most_cached_tokens() -> None:
    fleet = fleet_of(0, 9, 0)
    engine = fleet.engines[1]
    engine.submit(Job.hashed("a", 3 * BLOCK, 1, [1, 2, 3]), 0.0)
    engine.advance(float("inf"))
    assert CacheOracle(fleet, 1, 1).choice(request_of_blocks(0.0, 1, 2, 3, 4), 0) == 1


@pytest.mark.parametrize(("waiting", "replica"), [(0, 1), (1, 1), (40, 0)])
def test_exact_and_load_weighs_cached_tokens_against_the_queue(waiting: int, replica: int) -> None:
    fleet = fleet_of(2, waiting, 40)
    fleet.engines[1] = SimulatedEngine(HARDWARE)
    job = Job.hashed("before", 2 * BLOCK + 10, 1, (1, 2))
    fleet.engines[1].submit(job, 0.0)
    fleet.engines[1].advance(100.0)
    assert fleet.engines[1].cached_blocks((1, 2)) == 2
    # a third of the prompt is cached at the second
    assert ExactAndLoad(fleet, 1, 1).choice(request_of_blocks(0.0, 1, 2, 3, 4, 5, 6), 0) == replica


def visit(number: int, replica: int, ttft_s: float, cached_tokens: int) -> Visit:
    request = request_of_blocks(float(number), number)
    job = Job.hashed(str(number), request.prompt_tokens, 5, request.blocks)
    job.first_at, job.cached_tokens = request.at + ttft_s, cached_tokens
    return Visit(number, request, 0, replica, job, request.at + ttft_s + 1.0)


CASE = FleetCase("conversations", "antefix", 2, 1, 6.0)
VISITS = [visit(0, 0, 9.0, 0), visit(1, 0, 1.0, 69), visit(2, 1, 2.0, 69), visit(3, 1, 3.0, 0)]


def test_a_summary_leaves_the_warm_up_out() -> None:
    found = summary(CASE, VISITS, [0, 138, 69, 0], 0.25, [0.001, 0.002, 0.003])
    assert found.requests == 3
    assert found.cached_ratio == pytest.approx(138 / (3 * 138))
    assert found.of_ceiling == pytest.approx(138 / 207)
    assert found.ttft_mean_s == pytest.approx(2.0)
    assert found.variation_requests == pytest.approx(1 / 3)
    assert found.most_requests == pytest.approx(2 / 1.5)
    assert found.decision_ms_p50 == 2.0


def found_at(rate: float, random_s: float, ours_s: float, name: str) -> list[FleetSummary]:
    base = summary(CASE, VISITS, [0] * 4, 0.0, [])
    return [
        replace(
            base,
            case=FleetCase(name, policy, 8, 1, rate),
            ttft_mean_s=mean,
            ttft_p90_s=3 * mean,
            ttft_p99_s=4 * mean,
        )
        for policy, mean in (
            ("random", random_s),
            ("approximate_tree", 3 * ours_s),
            ("antefix", ours_s),
        )
    ]


FOUND = [
    summary(CASE, VISITS, [0, 138, 69, 0], 0.0, [0.001]),
    replace(summary(CASE, VISITS, [0, 138, 69, 0], 0.0, []), case=replace(CASE, policy="oracle")),
    *found_at(4.0, 3.0, 1.0, "mooncake_conversation"),
    *found_at(6.0, 60.0, 2.0, "mooncake_conversation"),
    *found_at(8.0, 400.0, 300.0, "mooncake_conversation"),
    *found_at(20.0, 30.0, 1.0, published.WORKLOAD),
    *found_at(5.0, 0.2, 0.25, "no_reuse"),
]
BUSY = {kind: rate * 1e-5 for kind, rate in CALLS_PER_S.items()}
LINEARLY = [0.001 * size for size in sizes_of("replicas")]
SLOWLY = [0.001 * size**0.4 for size in sizes_of("replicas")]


def test_a_summary_is_kept_by_the_name_of_its_case() -> None:
    assert as_json(FOUND[:1])["conversations/2/1/6/antefix"]["requests"] == 4


def test_peers_are_compared_at_the_load_of_the_peer() -> None:
    pair = saturated(FOUND)
    assert pair is not None
    assert [s.case.rate for s in pair] == [6.0, 6.0]
    assert saturated(FOUND[:2]) is None


def test_goals_are_met_or_missed() -> None:
    judged = goals(FOUND, BUSY, {"decision_by_replicas": SLOWLY})
    hits = judged["hits_of_ceiling_2_replicas_1_gateway"]
    assert (hits["figure"], hits["met"]) == (pytest.approx(138 / 207, abs=1e-4), False)
    assert judged["variation_2_replicas_1_gateway"]["met"]
    assert judged["mooncake_conversation_mean_ttft_of_random"]["figure"] == 30.0
    assert judged["mooncake_conversation_p99_ttft_of_random"]["met"]
    at_20 = judged["llm_d_shared_prefixes_at_20_mean_ttft_of_random"]
    assert at_20["figure"] == pytest.approx(30.291 / 1.291, abs=1e-3) and not at_20["met"]
    assert judged["llm_d_shared_prefixes_at_20_p90_ttft_of_random"]["met"]
    by_other = judged["no_reuse_mean_ttft_by_best_other"]
    assert (by_other["figure"], by_other["met"]) == (1.25, False)
    assert judged["decision_by_replicas_power"]["met"]
    judged = goals(FOUND, BUSY, {"decision_by_replicas": LINEARLY})
    assert not judged["decision_by_replicas_power"]["met"]


def test_a_linear_cost_has_no_goal_for_its_growth() -> None:
    growths = {"event_by_prompt_tokens": LINEARLY}
    assert not [name for name in goals(FOUND, BUSY, growths) if name.endswith("_power")]


def test_growth_is_fitted_as_a_power_of_the_size() -> None:
    assert power("decision_by_replicas", LINEARLY) == pytest.approx(1.0)
    assert power("decision_by_replicas", SLOWLY) == pytest.approx(0.4)


def test_headroom_is_one_core_divided_by_the_cpu_time_of_all_calls() -> None:
    # 10,000 heartbeats, 80 readings of the board, 3,000 calls of requests; and 1,000 announcements
    # that eight gateways receive, six at a time
    assert head_room(BUSY) == pytest.approx(1 / ((13_080 + 8_000 / 6) * 1e-5))


def test_every_policy_gets_requests_at_the_same_gateways() -> None:
    assert shuffled_gateways(100, 4, 1) == shuffled_gateways(100, 4, 1)
    assert set(shuffled_gateways(100, 4, 1)) == {0, 1, 2, 3}


def test_an_interrupted_run_resumes_with_what_was_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [FleetCase(CONVERSATIONS, policy, 2, 1, 4.0) for policy in ("random", "least_loaded")]
    simulations = [Simulation(case, Hardware(), seed=1) for case in cases]
    monkeypatch.setattr(simulate, "MOST_REQUESTS", 40)
    monkeypatch.setattr(simulate, "OF_A_REPLICA", 20)
    file = tmp_path / "kept"
    first = run.play(simulations[:1], KeptParts(file, "scale", rule=None))
    both = run.play(simulations, KeptParts(file, "scale", rule=None))
    assert both[0] == first[0]
    assert [of.case for of in both] == cases


def test_a_replica_without_requests_counts_in_the_variation() -> None:
    assert variation([("a", 1.0)], replicas=2) == 1.0
    assert variation([("a", 1.0), ("b", 1.0)], replicas=2) == 0.0
