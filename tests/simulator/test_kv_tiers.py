"""Simulated engines whose evicted blocks stay in host memory and on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.learned.load_rate import FORGOTTEN_S
from router.index.cached_blocks import CachedBlocks, Tier, tier_key
from router.index.segment_keys import Namespace, SegmentHasher, index_secret
from simulator.cache.kv_tiers import HasBlock, LoadPaths, RequestedLoads, TierSettings
from simulator.engines import Hardware, Job, SimulatedEngine
from tests.router.candidates import candidate

BLOCK, SEGMENT = 2, 4
# One second per prompt token, a quarter per step. The cache holds 16 tokens.
HARDWARE = Hardware(
    prefill_rate=1.0,
    step_s=0.25,
    sequence_s=0.125,
    step_tokens=64,
    sequences=4,
    block_tokens=BLOCK,
    blocks=8,
)
HOST = TierSettings(host_tokens=100, host_load_rate=8.0)
DISK = TierSettings(host_tokens=8, disk_tokens=100, host_load_rate=8.0, disk_load_rate=2.0)
PEERS = replace(HOST, peers=True, peer_load_rate=4.0)
FIRST, SECOND = range(100, 104), range(200, 207)


def request(name: str, blocks: Sequence[int], loads: RequestedLoads | None = None) -> Job:
    """A prompt of these blocks and one more token, with an answer of one token."""
    return Job.hashed(name, len(blocks) * BLOCK + 1, 1, blocks, loads=loads or RequestedLoads())


def engine_after_eviction(
    tiers: TierSettings | None, hardware: Hardware = HARDWARE
) -> SimulatedEngine:
    """An engine that has computed FIRST, and has evicted it from its cache for SECOND."""
    engine = SimulatedEngine(hardware, tiers)
    for name, blocks in (("a", FIRST), ("b", SECOND)):
        engine.submit(request(name, blocks), 0.0)
        engine.advance(math.inf)
    assert engine.cached_blocks(FIRST) == 0
    return engine


def ttft(engine: SimulatedEngine, job: Job) -> float:
    engine.submit(job, 100.0)
    engine.advance(math.inf)
    assert job.first_at is not None
    return job.first_at - 100.0


def test_evicted_blocks_are_computed_again_without_tiers() -> None:
    again = request("c", FIRST)
    assert ttft(engine_after_eviction(None), again) == 0.25 + 9
    assert again.cached_tokens == 0


def test_evicted_blocks_are_loaded_from_the_host() -> None:
    again = request("c", FIRST)
    # 8 tokens are loaded, and one is computed
    assert ttft(engine_after_eviction(HOST), again) == 8 / 8 + 0.25 + 1
    assert again.cached_tokens == 8


def test_blocks_that_left_the_host_are_read_from_disk() -> None:
    engine, again = engine_after_eviction(DISK), request("c", FIRST)
    assert engine.tier_depths(FIRST, 0) == (0, 4)
    assert ttft(engine, again) == 8 / 2 + 8 / 8 + 0.25 + 1
    assert again.cached_tokens == 8


def test_blocks_that_were_read_are_in_the_host_again() -> None:
    engine = engine_after_eviction(DISK)
    ttft(engine, request("c", FIRST))
    assert engine.tier_depths(FIRST, 0) == (4, 4)


def test_a_request_without_rates_in_the_settings_loads_as_gateways_assume() -> None:
    again = request("c", FIRST)
    assert ttft(engine_after_eviction(TierSettings(100)), again) == pytest.approx(0.8 + 0.25 + 1)
    again = request("d", FIRST)
    engine = engine_after_eviction(TierSettings(8, 100))
    assert ttft(engine, again) == pytest.approx(8 / 3 + 0.8 + 0.25 + 1)


@pytest.mark.parametrize("tiers", [HOST, DISK])
def test_a_request_that_refuses_the_tiers_is_computed(tiers: TierSettings) -> None:
    again = request("c", FIRST, RequestedLoads(refuses_host=True, refuses_disk=True))
    assert ttft(engine_after_eviction(tiers), again) == 0.25 + 9
    assert again.cached_tokens == 0


def test_a_request_that_refuses_only_the_disk_loads_from_the_host() -> None:
    in_host = request("c", FIRST, RequestedLoads(refuses_disk=True))
    assert ttft(engine_after_eviction(HOST), in_host) == 8 / 8 + 0.25 + 1
    on_disk = request("d", FIRST, RequestedLoads(refuses_disk=True))
    assert ttft(engine_after_eviction(DISK), on_disk) == 0.25 + 9


def test_an_engine_loads_while_it_computes_earlier_prompts() -> None:
    engine = engine_after_eviction(HOST, replace(HARDWARE, step_tokens=2))
    long, again = Job.hashed("c", 4, 1), request("d", FIRST)
    engine.submit(long, 100.0)
    engine.submit(again, 100.0)
    engine.advance(math.inf)
    assert long.first_at == 100.0 + 2 * 2.25
    # its load took place during the second step
    assert again.first_at == 104.5 + 0.25 + 1


def test_an_engine_computes_later_prompts_while_it_loads() -> None:
    slow = TierSettings(host_tokens=100, host_load_rate=0.5)
    engine, again, short = engine_after_eviction(slow), request("c", FIRST), request("d", ())
    engine.submit(again, 100.0)
    engine.advance(101.0)
    engine.submit(short, 101.0)
    engine.advance(math.inf)
    assert short.first_at == 101.0 + 0.25 + 1
    assert again.first_at == 100.0 + 16 + 0.25 + 1


def test_a_load_waits_for_room_in_the_cache() -> None:
    engine, long, again = engine_after_eviction(HOST), Job.hashed("c", 4, 10), request("d", FIRST)
    engine.submit(long, 100.0)
    engine.submit(again, 100.0)
    [(_, ended_at), _] = engine.advance(math.inf).finished
    assert ended_at == 100.0 + 4.25 + 9 * 0.375
    assert again.first_at == ended_at + 8 / 8 + 0.25 + 1


def pulling(name: str, source: Callable[[int], bool]) -> Job:
    return request(name, FIRST, RequestedLoads(peer_tokens=8, source=source))


def test_blocks_of_another_engine_are_pulled_and_then_loaded_from_the_host() -> None:
    source, engine = engine_after_eviction(PEERS), SimulatedEngine(HARDWARE, PEERS)
    asked = pulling("c", source.serves)
    assert ttft(engine, asked) == 8 / 4 + 8 / 8 + 0.25 + 1
    assert asked.cached_tokens == 8


def test_blocks_that_were_pulled_are_in_the_host_tier_when_they_have_arrived() -> None:
    source, engine = engine_after_eviction(PEERS), SimulatedEngine(HARDWARE, PEERS)
    asked = pulling("c", source.serves)
    engine.submit(asked, 100.0)
    engine.advance(102.0)
    assert not any(map(engine.serves, FIRST))
    engine.advance(103.0)
    assert all(map(engine.serves, FIRST))


def test_what_the_source_has_evicted_is_computed() -> None:
    asked = pulling("c", lambda block: False)
    assert ttft(SimulatedEngine(HARDWARE, PEERS), asked) == 0.25 + 9
    asked = pulling("d", FIRST[:2].__contains__)
    assert ttft(SimulatedEngine(HARDWARE, PEERS), asked) == 4 / 4 + 4 / 8 + 0.25 + 5
    assert asked.cached_tokens == 4


def test_an_engine_without_tiers_serves_no_blocks() -> None:
    assert not any(map(engine_after_eviction(None).serves, SECOND))


def test_blocks_in_the_own_host_tier_are_loaded_and_only_the_others_pulled() -> None:
    engine, loads = engine_after_eviction(PEERS), RequestedLoads(source=lambda block: True)
    again = request("c", [*FIRST, 104, 105], loads)
    # 8 tokens are in its host tier, and 4 are pulled
    assert ttft(engine, again) == 4 / 4 + 12 / 8 + 0.25 + 1


def test_a_request_that_shares_a_pulled_prefix_waits_for_the_pull() -> None:
    engine = SimulatedEngine(replace(HARDWARE, blocks=16), PEERS)
    first, second = pulling("c", lambda block: True), request("d", FIRST)
    engine.submit(first, 100.0)
    engine.advance(101.0)
    engine.submit(second, 101.0)
    engine.advance(math.inf)
    assert [job.cached_tokens for job in (first, second)] == [8, 8]
    assert [job.first_at for job in (first, second)] == [100.0 + 8 / 4 + 8 / 8 + 0.25 + 2] * 2


def test_pulls_take_turns_on_their_path() -> None:
    paths, first = LoadPaths().after(0.0, 1.0, 0.0, 10.0)
    assert first == 11.0
    # neither reads from disk nor loads from the host wait for them
    paths, read = paths.after(0.0, 1.0, 2.0)
    assert read == 3.0
    assert paths.after(0.0, 1.0, 0.0, 10.0)[1] == 21.0


def test_an_engine_reports_its_pulls_and_their_rate() -> None:
    source, engine = engine_after_eviction(PEERS), SimulatedEngine(HARDWARE, PEERS)
    engine.submit(pulling("c", source.serves), 100.0)
    engine.advance(100.1)
    load = engine.load()
    assert (load["queue"].peer_tokens, load["pace"].peer_load_rate) == (8, 0.0)
    engine.advance(200.0)
    load = engine.load()
    assert (load["queue"].peer_tokens, load["pace"].peer_load_rate) == (0, 4.0)


def test_a_request_that_pulls_does_not_read_from_disk() -> None:
    pulls = RequestedLoads.of(candidate("a", disk_tokens=4, peer_tokens=8, peer_load_s=2.0))
    assert (pulls.refuses_disk, pulls.disk_tokens, pulls.peer_tokens) == (True, 0, 8)


def test_loads_take_turns_on_a_path() -> None:
    paths, first = LoadPaths().after(10.0, 2.0, 0.0)
    assert first == 12.0
    paths, second = paths.after(11.0, 2.0, 0.0)
    assert second == 14.0
    assert paths.after(20.0, 2.0, 0.0)[1] == 22.0


def test_a_load_from_the_host_does_not_wait_for_reads_from_disk() -> None:
    paths, read = LoadPaths().after(0.0, 1.0, 10.0)
    assert read == 11.0
    paths, loaded = paths.after(0.0, 1.0, 0.0)
    assert loaded == 2.0
    assert paths.after(0.0, 1.0, 10.0)[1] == 21.0


def test_requests_with_one_prefix_share_its_load() -> None:
    engine = SimulatedEngine(replace(HARDWARE, blocks=16), HOST)
    for name, blocks in (("a", FIRST), ("b", range(200, 215))):
        engine.submit(request(name, blocks), 0.0)
        engine.advance(math.inf)
    both = [request(name, FIRST) for name in ("c", "d")]
    for job in both:
        engine.submit(job, 100.0)
    engine.advance(math.inf)
    assert [job.cached_tokens for job in both] == [8, 8]
    # both are computed in the step after the one load
    assert [job.first_at for job in both] == [100.0 + 8 / 8 + 0.25 + 2] * 2


def test_the_load_of_an_engine_counts_loads_until_the_first_token() -> None:
    engine = engine_after_eviction(DISK)
    engine.submit(request("c", FIRST, RequestedLoads(host_tokens=2, disk_tokens=4)), 100.0)
    engine.advance(100.1)
    queue = engine.load()["queue"]
    assert (queue.host_tokens, queue.disk_tokens) == (2, 4)
    engine.advance(200.0)
    queue = engine.load()["queue"]
    assert (queue.host_tokens, queue.disk_tokens) == (0, 0)


def test_a_rate_is_unknown_until_a_load_has_ended_and_is_forgotten_later() -> None:
    engine = engine_after_eviction(DISK)

    def rates() -> tuple[float, float]:
        pace: Any = engine.load()["pace"]
        return pace.host_load_rate, pace.disk_load_rate

    engine.advance(100.0)
    engine.submit(request("c", FIRST), 100.0)
    engine.advance(101.0)
    assert rates() == (0.0, 0.0)
    engine.advance(110.0)
    assert rates() == (8.0, 2.0)
    engine.advance(110.0 + FORGOTTEN_S)
    assert rates() == (0.0, 0.0)


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=10)
limits = st.sampled_from([(False, False), (False, True), (True, True)])
# what another replica has of a prompt: nothing, all, or some of its blocks
sources = st.sampled_from([None, lambda block: True, lambda block: block % 3 > 0])
traffic = st.lists(
    st.tuples(prompts, st.integers(1, 4), limits, sources, st.booleans()), max_size=12
)
SMALL = Hardware(step_tokens=6, sequences=3, block_tokens=BLOCK, blocks=8)
ANY_TIERS = st.builds(
    TierSettings,
    host_tokens=st.integers(2, 24),
    disk_tokens=st.sampled_from([0, 6, 40]),
    host_load_rate=st.sampled_from([100.0, 100_000.0]),
)


@given(traffic, ANY_TIERS)
def test_the_index_has_exactly_what_an_engine_has_in_its_tiers(
    asked: list[tuple[list[int], int, tuple[bool, bool], HasBlock | None, bool]],
    settings: TierSettings,
) -> None:
    hasher = SegmentHasher(index_secret("secret"))
    tiers = (Tier.HOST, Tier.DISK) if settings.disk_tokens else (Tier.HOST,)
    held = CachedBlocks(hasher, "main", None, SEGMENT, tiers=tiers)
    engine, jobs = SimulatedEngine(SMALL, settings), []
    for number, (prompt, answer, limit, source, waits) in enumerate(asked):
        loads = RequestedLoads(0, 0, *limit, source=source)
        jobs.append(Job(str(number), [*prompt, *[2] * answer], len(prompt), loads=loads))
        engine.submit(jobs[-1], 0.0)
        if waits:
            held.apply(engine.advance(math.inf).events)
    held.apply(engine.advance(math.inf).events)
    known = set(held.keys())

    for job in jobs:
        assert job.first_at is not None, "an engine must serve all requests"
        keys = hasher.keys(Namespace("main"), job.tokens, SEGMENT)
        cached = engine.cached_blocks(job.blocks)
        depths = zip((Tier.HOST, Tier.DISK), engine.tier_depths(job.blocks, cached), strict=True)
        for tier, depth in depths:
            if tier in tiers:
                indexed = [tier_key(key, tier) in known for key in keys]
                assert indexed == [(i + 1) * SEGMENT <= depth * BLOCK for i in range(len(keys))]
    assert engine.load()["cache"].use == 0.0
    assert engine.next_at is None
