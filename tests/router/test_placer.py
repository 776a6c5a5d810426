"""One gateway's placements: what counts against a replica, and for how long."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from router import slots
from router.load import UNSEEN_S, LoadReport, ReplicaLoad
from router.placement import BLIND
from router.placer import Attempt, Placer
from router.policies import PlacementRequest
from router.recent import ANNOUNCED_AFTER_S, MAX_ANNOUNCED_S
from router.redis_client import AsyncRedis, connect
from tests.router.index_redis import POOL, control
from tests.router.loads import load, pool
from tests.router.redis_process import RedisProcess
from tests.waiting import cancelled, until

NO_REDIS = "redis://127.0.0.1:1/0"
KEYS = tuple(b"%016d" % segment for segment in range(5))
# 5 segments of 128 tokens and a bit: all 5 can be reused.
REQUEST = PlacementRequest(700, KEYS)
PATIENT_S = 5.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def placer_at(
    url: str, clock: Clock | None = None, policy: str = "prefix", shadow: str | None = None
) -> Placer:
    text, binary = connect(url), connect(url, decode=False)
    return Placer(text, binary, POOL, policy, shadow, PATIENT_S, clock or time.monotonic)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def placer(clock: Clock) -> Placer:
    """Of a gateway that read its board a moment ago: three idle replicas, r0 to r2."""
    placer = placer_at(NO_REDIS, clock)
    placer.board.update(pool(3).values())
    return placer


def waiting(placer: Placer) -> dict[str, int]:
    return {replica_id: of.waiting for replica_id, of in placer.board.loads().items()}


def place(placer: Placer, count: int = 1) -> list[Attempt]:
    """Requests that the index knows nothing of."""
    return [placer.place(PlacementRequest(700), {}) for _ in range(count)]


def chosen_of(attempt: Attempt) -> str:
    assert attempt.chosen is not None
    return attempt.chosen.replica_id


def cached(attempt: Attempt) -> dict[str, tuple[int, int]]:
    """Replica -> tokens that the index confirms, and with those announced."""
    return {c.replica_id: (c.confirmed_tokens, c.cached_tokens) for c in attempt.placement.ranked}


def test_placements_count_at_once_and_so_spread(placer: Placer) -> None:
    place(placer, 6)
    assert waiting(placer) == {"r0": 2, "r1": 2, "r2": 2}
    assert all(of.queued_prefill_tokens == 1400 for of in placer.board.loads().values())


def test_only_what_is_to_be_computed_counts(placer: Placer) -> None:
    attempt = placer.place(REQUEST, {1: 3})
    assert chosen_of(attempt) == "r1"
    assert placer.board.loads()["r1"].queued_prefill_tokens == 700 - 3 * 128


@pytest.mark.parametrize("how", ["answered", "ended", "failed", "seen in a snapshot", "forgotten"])
def test_a_placement_counts_until_it_is(placer: Placer, clock: Clock, how: str) -> None:
    (attempt,) = place(placer)
    chosen = chosen_of(attempt)
    assert waiting(placer)[chosen] == 1
    if how == "answered":
        placer.answered(attempt, chosen, None)
    elif how == "ended":
        placer.ended(attempt, chosen)
    elif how == "failed":
        placer.ended(attempt, None)
    elif how == "seen in a snapshot":
        placer.board.update(pool(3, arrived=(attempt.ticket,)).values())
    else:
        clock.now += UNSEEN_S + 0.001
    assert sum(waiting(placer).values()) == 0


def test_tickets_are_told_apart(placer: Placer) -> None:
    first, second = place(placer, 2)
    placer.ended(first, chosen_of(first))
    assert waiting(placer)[chosen_of(second)] == 1


def test_what_comes_with_an_answer_counts_at_once(placer: Placer) -> None:
    (attempt,) = place(placer)
    placer.answered(attempt, "r2", LoadReport(1, 5, 3, 900))
    load = placer.board.loads()["r2"]
    assert (load.waiting, load.running, load.queued_prefill_tokens) == (5, 3, 900)


def test_a_request_that_follows_expects_what_was_announced(placer: Placer) -> None:
    first = placer.place(REQUEST, {})
    second = placer.place(REQUEST, {})
    assert cached(second)[chosen_of(first)] == (0, 640)
    assert set(cached(second).values()) == {(0, 0), (0, 640)}
    assert second.placement.best_cached_tokens == 0  # announced is not known


def test_a_request_that_ended_where_it_was_placed_stays_announced(placer: Placer) -> None:
    first = placer.place(REQUEST, {})
    placer.ended(first, chosen_of(first))
    assert cached(placer.place(REQUEST, {}))[chosen_of(first)] == (0, 640)


@pytest.mark.parametrize("served_by", [None, "elsewhere"])
def test_a_request_that_failed_or_went_elsewhere_announces_nothing(
    placer: Placer, served_by: str | None
) -> None:
    first = placer.place(REQUEST, {})
    placer.ended(first, served_by)
    assert set(cached(placer.place(REQUEST, {})).values()) == {(0, 0)}


def test_an_announcement_ends(placer: Placer, clock: Clock) -> None:
    placer.place(REQUEST, {})
    clock.now += MAX_ANNOUNCED_S + ANNOUNCED_AFTER_S
    placer.board.update(pool(3).values())
    assert set(cached(placer.place(REQUEST, {})).values()) == {(0, 0)}


def test_replicas_that_failed_a_request_are_not_placed_on_again(placer: Placer) -> None:
    held = {0: 5}
    assert chosen_of(placer.place(REQUEST, held)) == "r0"
    again = placer.place(REQUEST, held, avoid={"r0"})
    assert set(again.placement.replica_ids) == {"r1", "r2"}


def test_when_all_failed_any_replica_may_serve(placer: Placer) -> None:
    attempt = placer.place(REQUEST, {}, avoid={"r0", "r1", "r2"})
    assert attempt.chosen is None
    assert attempt.placement.replica_ids == ()
    placer.ended(attempt, "r1")
    assert sum(waiting(placer).values()) == 0


def test_bits_of_a_slot_without_a_live_replica_are_nobodys(placer: Placer) -> None:
    placer.board.update(load(f"r{i}", slot=i) for i in (0, 2))
    attempt = placer.place(REQUEST, {1: 5, 7: 5})
    assert cached(attempt) == {"r0": (0, 0), "r2": (0, 0)}


def test_what_was_announced_for_another_incarnation_is_nothing(placer: Placer) -> None:
    first = placer.place(REQUEST, {})
    chosen = chosen_of(first)
    reborn = [
        load(of.replica_id, slot=of.slot, incarnation=of.incarnation + " reborn")
        for of in placer.board.loads().values()
    ]
    placer.board.update(reborn)
    second = placer.place(REQUEST, {})
    assert cached(second)[chosen] == (0, 0)
    assert next(c for c in second.placement.ranked if c.replica_id == chosen).placed_lately == 0


def test_without_the_index_placement_goes_by_load_and_keeps_prefixes_together(
    placer: Placer,
) -> None:
    attempts = [placer.place(REQUEST, None) for _ in range(2)]
    assert not any(attempt.placement.signal for attempt in attempts)
    for attempt in attempts:
        placer.ended(attempt, None)
    assert len({chosen_of(attempt) for attempt in attempts}) == 1


def test_with_an_empty_board_placement_goes_by_who_was_last_known(
    placer: Placer, clock: Clock
) -> None:
    clock.now += slots.LEASE_S + 0.001
    assert placer.board.loads() == {}
    attempts = [placer.place(REQUEST, None) for _ in range(2)]
    assert {attempt.placement.policy for attempt in attempts} == {BLIND}
    assert set(attempts[0].placement.replica_ids) == {"r0", "r1", "r2"}
    assert len({chosen_of(attempt) for attempt in attempts}) == 1
    assert placer.segment_tokens == 128  # prompts still have keys to gather by


def test_blind_placements_count_what_is_in_flight(placer: Placer, clock: Clock) -> None:
    clock.now += slots.LEASE_S + 0.001
    attempts = [placer.place(REQUEST, None) for _ in range(30)]
    counts = [sum(chosen_of(a) == f"r{i}" for a in attempts) for i in range(3)]
    assert max(counts) <= 1.25 * 10 + 2
    first = chosen_of(attempts[0])
    for attempt in attempts:
        placer.ended(attempt, chosen_of(attempt))
    assert chosen_of(placer.place(REQUEST, None)) == first


def test_blind_placements_avoid_replicas_that_failed(placer: Placer, clock: Clock) -> None:
    clock.now += slots.LEASE_S + 0.001
    first = placer.place(REQUEST, None)
    again = placer.place(REQUEST, None, avoid={chosen_of(first)})
    assert chosen_of(first) not in again.placement.replica_ids
    assert len(again.placement.ranked) == 2


def test_with_nobody_known_any_replica_may_serve() -> None:
    attempt = placer_at(NO_REDIS).place(REQUEST, None)
    assert (attempt.chosen, attempt.placement.policy) == (None, BLIND)


def test_a_request_may_ask_for_another_policy_and_none_that_does_not_exist(placer: Placer) -> None:
    assert placer.place(REQUEST, {}).placement.policy == "prefix"
    assert placer.place(REQUEST, {}, policy="random").placement.policy == "random"
    with pytest.raises(ValueError, match="fastest"):
        placer.place(REQUEST, {}, policy="fastest")


def test_a_policy_remembers_from_request_to_request(placer: Placer) -> None:
    chosen = [chosen_of(placer.place(REQUEST, {}, policy="round_robin")) for _ in range(4)]
    assert len(set(chosen[:3])) == 3
    assert chosen[3] == chosen[0]


def test_a_shadow_policy_is_recorded_and_not_followed(clock: Clock) -> None:
    placer = placer_at(NO_REDIS, clock, "prefix", shadow="least_loaded")
    placer.board.update(load(f"r{i}", slot=i, running=1 - i) for i in (0, 1))
    attempt = placer.place(REQUEST, {0: 5})
    assert chosen_of(attempt) == "r0"
    shadow = attempt.placement.shadow
    assert shadow is not None
    assert (shadow.policy, shadow.replica_id, shadow.cached_tokens) == ("least_loaded", "r1", 0)


def test_predictions_are_corrected_by_what_came(placer: Placer) -> None:
    attempt = placer.place(REQUEST, {0: 5})
    assert attempt.chosen is not None
    for _ in range(200):
        placer.observed(attempt.chosen, 3 * attempt.chosen.raw_ttft)
    placer.ended(attempt, "r0")
    better = placer.place(REQUEST, {0: 5}).chosen
    assert better is not None
    assert better.predicted_ttft == pytest.approx(3 * better.raw_ttft, rel=0.1)


@pytest.mark.parametrize(("sizes", "expected"), [((128, 128, 64), 128), ((64, 0), 64), ((), 0)])
def test_segments_are_as_most_replicas_publish_them(sizes: Iterable[int], expected: int) -> None:
    placer = placer_at(NO_REDIS)
    placer.board.update(load(f"r{i}", slot=i, segment_tokens=size) for i, size in enumerate(sizes))
    assert placer.segment_tokens == expected


@pytest.fixture
async def redis(redis: AsyncRedis) -> AsyncIterator[AsyncRedis]:
    """Two replicas live, in slots 0 and 1; their leases are renewed."""
    loads = [load("r0", slot=0), load("r1", slot=1)]
    for of in loads:
        await slots.claim(redis, POOL, of.incarnation, of.slot)
    task = asyncio.create_task(_renewed(redis, loads))
    yield redis
    await cancelled(task)


async def _renewed(client: AsyncRedis, loads: list[ReplicaLoad]) -> None:
    while True:
        for of in loads:
            await slots.renew(client, POOL, of.slot, of.incarnation, of.to_json())
        await asyncio.sleep(0.05)


@asynccontextmanager
async def gateway(server: RedisProcess, replicas: int = 2) -> AsyncIterator[Placer]:
    """Another gateway's placer at work; its task may not end by itself."""
    placer = placer_at(server.url)
    task = asyncio.create_task(placer.run())
    try:
        await until(lambda: len(placer.board.loads()) == replicas)
        yield placer
        assert not task.done()
    finally:
        await cancelled(task)


async def test_what_another_gateway_placed_counts_here(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with gateway(server) as one, gateway(server) as other:
        attempt = one.place(REQUEST, {})
        await until(lambda: waiting(other)[chosen_of(attempt)] == 1)
        assert other.board.loads()[chosen_of(attempt)].queued_prefill_tokens == 700


async def test_what_another_gateway_announced_is_expected_here(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with gateway(server) as one, gateway(server) as other:
        attempt = one.place(REQUEST, {})
        await until(lambda: sum(waiting(other).values()) == 1)
        assert cached(other.place(REQUEST, {}))[chosen_of(attempt)] == (0, 640)


async def test_a_gateway_hears_its_own_placements_once(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with gateway(server) as one, gateway(server) as other:
        attempt = one.place(REQUEST, {})
        one.ended(attempt, chosen_of(attempt))
        await until(lambda: sum(waiting(other).values()) == 1)
        assert sum(waiting(one).values()) == 0


async def test_bits_are_read_as_those_of_the_replica_that_lives_in_the_slot(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    assert await slots.write_bits(redis, POOL, 1, "r1-1", KEYS[:3], [])
    async with gateway(server) as placer:
        held = await placer.look_up(KEYS)
        assert held == {1: 3}
        assert cached(placer.place(REQUEST, held)) == {"r0": (0, 0), "r1": (384, 384)}


async def test_bits_of_an_incarnation_that_is_gone_are_given_to_nobody(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    await slots.claim(redis, POOL, "dead", 7)
    assert await slots.write_bits(redis, POOL, 7, "dead", KEYS, [])
    with control(server) as client:
        client.hset(slots.slots_key(POOL), "1", "another incarnation")
    async with gateway(server, replicas=1) as placer:
        held = await placer.look_up(KEYS)
        assert held == {7: 5}
        assert cached(placer.place(REQUEST, held)) == {"r0": (0, 0)}
