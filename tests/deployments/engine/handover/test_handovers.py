"""Replicas hand hot prefixes to each other over HTTP; their engines and Redis are fakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from deployments.engine.handover import handovers, heirs
from deployments.engine.handover.handovers import HEIR, NEW, Handovers
from deployments.engine.handover.heirs import MOST_OTHERS, heirs_of, shares, sources_of
from deployments.engine.handover.other_replicas import OtherReplicas
from deployments.engine.handover.sealed_handover import HANDOVER_PATH
from deployments.engine.serving.snapshots import ReplicaState
from deployments.engine.serving.tickets import TicketGate, Tickets
from deployments.process.http_server import HttpServer
from deployments.wire.engine_pass import EnginePasses
from router.board.load import LoadBoard
from router.index.cached_blocks import Tier, tier_key
from router.index.hot_prefixes import HOT, HotPrefix, HotPrefixes
from router.index.index import Depths
from router.index.segment_keys import SegmentHasher, index_secret, pack
from tests.router import loads
from tests.router.loads import load
from tests.waiting import until

SECRET, SEGMENT, ROOM = "secret", 4, 1000
HASHER = SegmentHasher(index_secret(SECRET))
OF = HotPrefixes(HASHER, "model", None, SEGMENT)

Pulled = tuple[tuple[int, ...], str | None, str]


def prefix(number: int, segments: int = 2, salt: str | None = None) -> HotPrefix:
    return OF.prefix(pack([number] * segments * SEGMENT), salt)


class Engine:
    """Pulls what it may, as an engine does. `lost`: the addresses of engines that have ended."""

    kv_capacity_tokens = host_tokens = max_model_len = ROOM
    max_sequences = 2

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.waiting = self.running = 0
        self.pulled: list[Pulled] = []
        self.lost: set[str] = set()
        self.before_pull: Callable[[], Awaitable[None]] | None = None

    def queue(self) -> tuple[int, int, int, int, int, int]:
        return self.waiting, self.running, 0, 0, 0, 0

    async def pull(self, token_ids: list[int], salt: str | None, source: str) -> int:
        if self.before_pull is not None:
            await self.before_pull()
        self.pulled.append((tuple(token_ids[:-1]), salt, source))
        return 0 if source in self.lost else len(token_ids) - 1


class Index:
    """`held`: of each slot, the keys that it has."""

    def __init__(self) -> None:
        self.held: dict[int, set[bytes]] = {}

    async def lookup(self, keys: Sequence[bytes]) -> Depths:
        return {slot: heirs.leading(keys, has.__contains__) for slot, has in self.held.items()}

    async def aclose(self) -> None:
        pass


class Replica:
    """A replica with hot prefixes, at a real address."""

    def __init__(self, slot: int, index: Index, board: LoadBoard) -> None:
        self.slot = slot
        self.engine = Engine(f"10.0.0.{slot}:5710")
        self.state = ReplicaState()
        self.hot = HotPrefixes(HASHER, "model", None, SEGMENT)
        self.held = index.held.setdefault(slot, set())
        self.use = 0.0
        reader = cast(Any, type("Reader", (), {"board": board}))
        others = OtherReplicas(f"r{slot}", reader, cast(Any, index), SECRET)
        self.handovers = Handovers(
            self.engine,
            lambda: self.state.leaving,
            self.hot,
            cast(Any, self.held),
            others,
            lambda: self.use,
        )
        app = Starlette(routes=[Route(HANDOVER_PATH, self.handovers)])
        self.gate = TicketGate(app, Tickets(4), SECRET)
        self.server = HttpServer(self.gate)

    def has(self, *prefixes: HotPrefix) -> None:
        """It served these twice, and its engine has them."""
        for one in reversed(prefixes):
            self.hot.used_prefix(one, HOT)
            self.held.update(tier_key(key, Tier.HOST) for key in one.keys)


class Pool:
    def __init__(self) -> None:
        self.index, self.board = Index(), LoadBoard(time.monotonic)
        self.replicas: list[Replica] = []

    async def start(self) -> Replica:
        replica = Replica(len(self.replicas), self.index, self.board)
        replica.gate.url = await replica.server.start("127.0.0.1")
        self.replicas.append(replica)
        self.publish()
        return replica

    def publish(self) -> None:
        """The board shows the replicas as they are."""
        self.board.update(
            load(
                f"r{of.slot}",
                slot=of.slot,
                url=of.gate.url,
                peer=of.engine.peer,
                leaving=of.state.leaving,
            )
            for of in self.replicas
        )

    def leaves(self, replica: Replica) -> None:
        replica.state.leaving = True
        self.publish()


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool()
    yield pool
    for replica in pool.replicas:
        await replica.server.drain()


def pulled(of: HotPrefix, source: Replica, number: int) -> Pulled:
    return (number,) * of.length, of.salt, source.engine.peer


async def test_a_new_replica_pulls_the_hot_prefixes_of_the_others(pool: Pool) -> None:
    one, other = await pool.start(), await pool.start()
    one.has(prefix(1), prefix(2, salt="tenant"))
    other.has(prefix(3))
    new = await pool.start()
    await new.handovers.take_over()
    assert set(new.engine.pulled) == {
        pulled(prefix(1), one, 1),
        pulled(prefix(2, salt="tenant"), one, 2),
        pulled(prefix(3), other, 3),
    }
    assert new.handovers.taken[NEW] == (3, 6 * SEGMENT)


async def test_a_new_replica_pulls_the_hottest_prefixes_of_each_replica_first(pool: Pool) -> None:
    one, other = await pool.start(), await pool.start()
    one.has(prefix(1), prefix(2))
    other.has(prefix(3), prefix(4))
    new = await pool.start()
    await new.handovers.take_over()
    assert {tokens[0] for tokens, _, _ in new.engine.pulled[:2]} == {1, 3}


async def test_a_prefix_that_several_replicas_have_is_pulled_once(pool: Pool) -> None:
    for _ in range(2):
        (await pool.start()).has(prefix(1))
    new = await pool.start()
    await new.handovers.take_over()
    assert len(new.engine.pulled) == 1


async def test_what_the_engine_has_lost_is_not_handed_over(pool: Pool) -> None:
    one = await pool.start()
    one.has(prefix(1, 4), prefix(2))
    for key in (*prefix(1, 4).keys[1:], *prefix(2).keys):
        one.held.discard(tier_key(key, Tier.HOST))
    new = await pool.start()
    await new.handovers.take_over()
    assert new.engine.pulled == [pulled(prefix(1, 1), one, 1)]


async def test_a_new_replica_pulls_no_more_than_its_host_tier_holds(pool: Pool) -> None:
    one = await pool.start()
    one.has(prefix(1), prefix(2), prefix(3))
    new = await pool.start()
    new.engine.host_tokens = 5 * SEGMENT
    await new.handovers.take_over()
    assert [tokens[0] for tokens, _, _ in new.engine.pulled] == [1, 2]


async def test_a_replica_that_leaves_gives_its_prefixes_to_one_that_stays(pool: Pool) -> None:
    leaving, heir = await pool.start(), await pool.start()
    leaving.has(prefix(1), prefix(2))
    pool.leaves(leaving)
    await leaving.handovers.hand_over()
    assert heir.engine.pulled == [pulled(prefix(1), leaving, 1), pulled(prefix(2), leaving, 2)]
    assert heir.handovers.taken[HEIR] == (2, 4 * SEGMENT)
    assert leaving.handovers.running == 0


async def test_an_heir_hands_over_what_it_took_when_it_leaves_too(pool: Pool) -> None:
    first, second = await pool.start(), await pool.start()
    first.has(prefix(1))
    pool.leaves(first)
    await first.handovers.hand_over()
    second.held.update(first.held)
    third = await pool.start()
    pool.leaves(second)
    await second.handovers.hand_over()
    assert third.engine.pulled == [pulled(prefix(1), second, 1)]


async def test_a_prefix_that_a_staying_replica_has_is_not_handed_over(pool: Pool) -> None:
    leaving, has_it, heir = [await pool.start() for _ in range(3)]
    leaving.has(prefix(1), prefix(2))
    has_it.has(prefix(1))
    pool.leaves(leaving)
    await leaving.handovers.hand_over()
    assert [tokens[0] for one in (has_it, heir) for tokens, _, _ in one.engine.pulled] == [2]


async def test_the_last_replica_leaves_at_once(pool: Pool) -> None:
    leaving = await pool.start()
    leaving.has(prefix(1))
    pool.leaves(leaving)
    await leaving.handovers.hand_over()


async def test_a_replica_that_leaves_too_takes_nothing(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    leaving, other = await pool.start(), await pool.start()
    leaving.has(prefix(1))
    other.state.leaving = True  # the board does not show it yet
    await leaving.handovers.hand_over()
    assert other.engine.pulled == []
    assert "the replica answered 409" in caplog.text


async def test_a_source_that_is_lost_is_not_asked_again(pool: Pool) -> None:
    lost, other = await pool.start(), await pool.start()
    lost.has(prefix(1), prefix(2), prefix(3))
    other.has(prefix(4), prefix(5))
    new = await pool.start()
    new.engine.lost.add(lost.engine.peer)
    await new.handovers.take_over()
    assert [tokens[0] for tokens, _, source in new.engine.pulled if source == lost.engine.peer] == [
        1
    ]
    assert new.handovers.taken[NEW] == (2, 4 * SEGMENT)


async def test_a_pull_that_fails_ends_only_the_pulls_from_its_source(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    one = await pool.start()
    one.has(prefix(1), prefix(2))
    new = await pool.start()

    async def fail() -> None:
        raise RuntimeError("the engine is lost")

    new.engine.before_pull = fail
    await new.handovers.take_over()
    assert caplog.text.count("failed to pull a hot prefix") == 1


@asynccontextmanager
async def hanging_up() -> AsyncIterator[str]:
    """The address of a server that closes each connection."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_replica_that_does_not_answer_does_not_stop_the_others(
    pool: Pool, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    one, lost = await pool.start(), await pool.start()
    one.has(prefix(1))
    await lost.server.drain()
    async with hanging_up() as url:
        if not is_gone:
            lost.gate.url = url
        new = await pool.start()
        await new.handovers.take_over()
    assert new.engine.pulled == [pulled(prefix(1), one, 1)]
    assert "failed to ask replica r1 for prefixes" in caplog.text


async def test_without_redis_a_new_replica_pulls_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Reader:
        board = LoadBoard(time.monotonic)

        async def read(self) -> None:
            raise OSError("no Redis")

    new = Pool()
    others = OtherReplicas("r0", cast(Any, Reader()), cast(Any, new.index), SECRET)
    alone = Handovers(Engine(""), lambda: False, OF, cast(Any, set()), others, lambda: 0.0)
    await alone.take_over()
    await alone.hand_over()
    assert caplog.text.count("no Redis") == 2


@asynccontextmanager
async def handing_over(leaving: Replica) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(leaving.handovers.hand_over())
    yield task
    await task


async def test_an_heir_pulls_only_while_no_request_waits(pool: Pool) -> None:
    leaving, heir = await pool.start(), await pool.start()
    leaving.has(prefix(1), prefix(2))
    pool.leaves(leaving)
    looks = 0

    def busy() -> tuple[int, int, int, int, int, int]:
        nonlocal looks
        looks += 1
        return heir.engine.waiting, 0, 0, 0, 0, 0

    heir.engine.queue = busy  # type: ignore[method-assign]

    async def a_request_comes() -> None:
        heir.engine.waiting = len(heir.engine.pulled) + 1

    heir.engine.before_pull = a_request_comes
    async with handing_over(leaving):
        await until(lambda: len(heir.engine.pulled) == 1 and looks > 3)
        assert leaving.handovers.running == 1
        assert len(heir.engine.pulled) == 1
        heir.engine.waiting = 0
    assert len(heir.engine.pulled) == 2


@pytest.mark.parametrize(("running", "use"), [(2, 0.0), (1, 0.999)])
async def test_an_heir_without_room_for_a_request_waits(
    pool: Pool, running: int, use: float
) -> None:
    leaving, heir = await pool.start(), await pool.start()
    leaving.has(prefix(1))
    pool.leaves(leaving)
    heir.engine.running, heir.use = running, use
    async with handing_over(leaving) as task:
        done, _ = await asyncio.wait({task}, timeout=4 * handovers.PAUSE_S)
        assert not done and heir.engine.pulled == []
        heir.engine.running = 0
    assert len(heir.engine.pulled) == 1


async def test_a_busy_heir_ends_in_time(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handovers, "HEIR_S", 0.2)
    leaving, heir = await pool.start(), await pool.start()
    leaving.has(prefix(1))
    pool.leaves(leaving)
    heir.engine.waiting = 1
    await asyncio.wait_for(leaving.handovers.hand_over(), 60)
    assert heir.engine.pulled == []


@pytest.mark.parametrize("limit", ["max_model_len", "kv_capacity_tokens", "host_tokens"])
async def test_a_prefix_that_is_longer_than_the_engine_takes_is_left_out(
    pool: Pool, limit: str
) -> None:
    leaving, heir = await pool.start(), await pool.start()
    leaving.has(prefix(1, 5), prefix(2, 1))
    pool.leaves(leaving)
    setattr(heir.engine, limit, 4 * SEGMENT)
    await leaving.handovers.hand_over()
    assert heir.engine.pulled == [pulled(prefix(2, 1), leaving, 2)]


async def test_without_the_secret_a_client_neither_reads_nor_gives_prefixes(pool: Pool) -> None:
    one = await pool.start()
    one.has(prefix(1))
    url = one.gate.url + HANDOVER_PATH
    seen = EnginePasses(SECRET).headers(one.gate.url, path=HANDOVER_PATH)
    async with aiohttp.ClientSession() as http:
        async with http.get(url) as answer:
            assert answer.status == 403
        async with http.get(url, headers=seen) as answer:
            assert prefix(1).tokens not in await answer.read()
        async with http.post(url, headers=seen, data=b"nonsense") as answer:
            assert answer.status == 400
    assert one.engine.pulled == []


def test_a_new_replica_asks_those_that_leave_first() -> None:
    pool = loads.pool(20)
    pool["r17"] = loads.changed(pool["r17"], leaving=True)
    asked = sources_of(list(pool.values()))
    assert asked[0].replica_id == "r17" and len(asked) == MOST_OTHERS


def test_prefixes_go_to_replicas_that_stay_and_have_little_to_do() -> None:
    busy, idle = load("a", slot=0, queued_prefill_tokens=100), load("b", slot=1)
    leaving = load("c", slot=2, leaving=True)
    assert heirs_of([busy, leaving, idle]) == [idle, busy]
    own: list[tuple[HotPrefix, Depths]] = [(prefix(n), {}) for n in range(3)]
    assert shares(own, [idle, busy]) == {0: [], 1: [of for of, _ in own]}


def test_prefixes_are_spread_over_the_replicas() -> None:
    staying = [load("a", slot=0), load("b", slot=1)]
    given = shares([(prefix(n), {}) for n in range(6)], staying)
    assert [len(of) for of in given.values()] == [3, 3]


def test_a_prefix_goes_where_most_of_it_is() -> None:
    staying = [load("a", slot=0), load("b", slot=1)]
    assert shares([(prefix(1, 8), {1: 7})], staying) == {0: [], 1: [prefix(1, 8)]}


def test_prefixes_that_share_a_long_start_go_to_one_replica() -> None:
    staying = [load("a", slot=0), load("b", slot=1)]
    tails = [OF.prefix(pack([1] * 16 * SEGMENT + [n] * SEGMENT), None) for n in range(3)]
    given = shares([(prefix(1, 16), {}), *((tail, {}) for tail in tails)], staying)
    assert sorted(len(of) for of in given.values()) == [0, 4]
