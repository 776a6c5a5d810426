"""What a fleet takes of Redis, by kind of call.

The cost of a call is the server's CPU time for it, reading and answering included (INFO cpu). One
Redis serves on one core, so its head-room is that core divided by the sum of rates times costs.

    heartbeat      a replica renews its lease and load, ten times a second
    board          a gateway reads all leases, ten times a second
    lookup         of a prompt in the index, one a request
    write          newly cached and evicted segments of an engine, one a request
    announcement   of a placement, one a request
    hearing        a gateway reads what others announced since the last time
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.harness.fleets import index_pool
from benchmarks.harness.fleets.index_pool import POOL, board_of
from benchmarks.scale.patience import PATIENT_S, patiently
from router.board.load import LoadBoard
from router.board.load_reader import READ_PERIOD_S, LoadReader
from router.board.placed_stream import EXPIRE_S, MAX_LENGTH, PAUSE_S, stream_key
from router.board.recent import Placed
from router.index import slots
from router.index.index import PrefixIndex
from router.index.publisher import HEARTBEAT_S
from router.index.segment_keys import KEY_BYTES
from router.redis.redis_client import AsyncRedis, connect

# The fleet; REQUESTS a second over all gateways.
REPLICAS, GATEWAYS, REQUESTS = 1000, 8, 1000.0
# A 10,000-token prompt in segments of 128, of which a third is cached. Caches are full, so as many
# segments are evicted as computed.
SEGMENTS, COMPUTED = 78, 52
# Announcements that a gateway reads in one call: the first, and those in the pause after the call
# before.
HEARD_AT_ONCE = round(1 + REQUESTS * PAUSE_S)
CALLS_PER_S = {
    "heartbeat": REPLICAS / HEARTBEAT_S,
    "board": GATEWAYS / READ_PERIOD_S,
    "lookup": REQUESTS,
    "write": REQUESTS,
    "announcement": REQUESTS,
    "hearing": REQUESTS * GATEWAYS / HEARD_AT_ONCE,
}
CLIENTS, ROUNDS = 16, 3
# The calls that a round measures, by kind.
CALLS = {**dict.fromkeys(CALLS_PER_S, 1500), "heartbeat": 4000, "board": 20}
Call = Callable[[int], Awaitable[Any]]
Busy = Mapping[str, float]
"""The share of a core that each kind of call takes."""


def head_room(busy: Busy) -> float:
    """How many times as much one Redis could serve."""
    return 1.0 / sum(busy.values())


async def measure(url: str) -> Busy:
    """On an empty Redis, which then has a pool of REPLICAS."""
    clients = [connect(url, decode=False) for _ in range(CLIENTS)]
    text = connect(url)
    try:
        incarnations = [f"{slot:016x}" for slot in range(REPLICAS)]
        for slot, incarnation in enumerate(incarnations):
            await patiently(slots.claim, text, POOL, incarnation, slot)
        calls = _calls(url, clients, text, incarnations)
        busy = {}
        for kind, call in calls.items():
            costs = []
            for _ in range(ROUNDS):
                for slot in range(REPLICAS):  # so that no lease ends meanwhile
                    await patiently(calls["heartbeat"], slot)
                costs.append(await _cost(text, call, CALLS[kind]))
            busy[kind] = CALLS_PER_S[kind] * statistics.median(costs)
        return busy
    finally:
        for client in (*clients, text):
            await client.aclose()


def _calls(
    url: str, clients: Sequence[AsyncRedis], text: AsyncRedis, incarnations: Sequence[str]
) -> Mapping[str, Call]:
    rng = random.Random(1)
    snapshots = [msgspec.json.encode(load).decode() for load in board_of(REPLICAS)]
    prompts = [[rng.randbytes(KEY_BYTES) for _ in range(SEGMENTS)] for _ in range(32)]
    for keys in prompts:
        index_pool.hold(url, keys, index_pool.depths_of("conversation", SEGMENTS, REPLICAS))
    index = PrefixIndex(clients[0], POOL, PATIENT_S)
    reader = LoadReader(text, POOL, LoadBoard(asyncio.get_running_loop().time))
    written: dict[int, list[bytes]] = {}
    stream = stream_key(POOL)
    announced = tuple(random.randbytes(8) for _ in range(COMPUTED))
    placed = Placed("gateway", "0" * 32, 1, "1", 10_000, 5_000, 0.5, (), announced)
    encoded = msgspec.msgpack.encode(placed)

    async def heartbeat(number: int) -> None:
        slot, client = number % REPLICAS, clients[number % CLIENTS]
        assert await slots.renew(client, POOL, slot, incarnations[slot], snapshots[slot])

    async def board(number: int) -> None:
        await reader.read()

    async def lookup(number: int) -> None:
        assert await index.lookup(prompts[number % len(prompts)]) is not None

    async def write(number: int) -> None:
        slot, client = number % REPLICAS, clients[number % CLIENTS]
        fresh = [random.randbytes(KEY_BYTES) for _ in range(COMPUTED)]
        # what is evicted was written at this replica's last turn
        old, written[slot] = written.get(slot, []), fresh
        assert await slots.write_bits(client, POOL, slot, incarnations[slot], fresh, old)

    async def announcement(number: int) -> None:
        pipe = clients[number % CLIENTS].pipeline(transaction=False)
        pipe.xadd(stream, {b"p": encoded}, maxlen=MAX_LENGTH, approximate=True)
        pipe.expire(stream, EXPIRE_S)
        await pipe.execute()

    async def hearing(number: int) -> None:
        streams: dict[Any, Any] = {stream: "0-0"}
        assert await clients[number % CLIENTS].xread(streams, count=HEARD_AT_ONCE)

    calls = (heartbeat, board, lookup, write, announcement, hearing)
    return dict(zip(CALLS_PER_S, calls, strict=True))


async def _cost(redis: AsyncRedis, call: Call, calls: int) -> float:
    """CPU seconds of the server for one call."""
    numbers = iter(range(calls))

    async def some() -> None:
        for number in numbers:
            await patiently(call, number)

    before = await _cpu_s(redis)
    await asyncio.gather(*(some() for _ in range(CLIENTS)))
    return (await _cpu_s(redis) - before) / calls


async def _cpu_s(redis: AsyncRedis) -> float:
    info: Any = await redis.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
