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
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from benchmarks.scale.patience import PATIENT_S, patiently
from benchmarks.stand import index_pool
from benchmarks.stand.index_pool import board_of
from router import slots
from router.index import PrefixIndex
from router.load import LoadBoard
from router.load_reader import READ_PERIOD_S, LoadReader
from router.placed_stream import EXPIRE_S, MAX_LENGTH, PAUSE_S, stream_key
from router.publisher import HEARTBEAT_S
from router.recent import Placed
from router.redis_client import AsyncRedis, connect
from router.segment_keys import KEY_BYTES

CLIENTS = 16
CALLS = {
    "heartbeat": 4000,
    "board": 20,
    "lookup": 1500,
    "write": 1500,
    "announcement": 1500,
    "hearing": 1500,
}
ROUNDS = 3


@dataclass(frozen=True)
class RedisDemand:
    """`requests` a second over all gateways, each with a prompt of `segments`, of which `computed`
    are not cached. Caches are full, so as many are evicted."""

    replicas: int
    gateways: int
    requests: float
    segments: int
    computed: int

    @property
    def heard_at_once(self) -> int:
        """Announcements that a gateway reads in one call: the first, and those in the pause after
        the call before."""
        return round(1 + self.requests * PAUSE_S)

    @property
    def calls_per_s(self) -> dict[str, float]:
        return {
            "heartbeat": self.replicas / HEARTBEAT_S,
            "board": self.gateways / READ_PERIOD_S,
            "lookup": self.requests,
            "write": self.requests,
            "announcement": self.requests,
            "hearing": self.requests * self.gateways / self.heard_at_once,
        }


# A 10,000-token prompt in segments of 128, of which a third is cached.
DEMAND = RedisDemand(replicas=1000, gateways=8, requests=1000.0, segments=78, computed=52)
# Of a Redis Cluster.
NODES, POOLS = 3, 24


def pools_on_nodes(pools: int = POOLS, nodes: int = NODES) -> list[int]:
    """How many pools Redis Cluster places on each node, with its hash slots spread evenly.

    All keys of a pool have one hash tag, so a pool is on one node."""
    share = -(-REDIS_CLUSTER_HASH_SLOTS // nodes)
    keys = [slots.slots_key(f"fleet/model-{number}").encode() for number in range(pools)]
    counts = Counter(key_slot(key) // share for key in keys)
    return [counts[node] for node in range(nodes)]


@dataclass(frozen=True)
class RedisLoad:
    """`cost_s`: CPU seconds of the server for one call of a kind."""

    demand: RedisDemand
    cost_s: dict[str, float]

    @property
    def busy(self) -> dict[str, float]:
        """The share of a core by kind."""
        return {kind: rate * self.cost_s[kind] for kind, rate in self.demand.calls_per_s.items()}

    @property
    def head_room(self) -> float:
        """How many times as much one Redis could serve."""
        return 1.0 / sum(self.busy.values())


async def measure(url: str, demand: RedisDemand) -> RedisLoad:
    """On an empty Redis, which then has a pool of the demand's replicas."""
    clients = [connect(url, decode=False) for _ in range(CLIENTS)]
    text = connect(url)
    try:
        incarnations = await _join(text, demand.replicas)
        calls = await _calls(url, clients, text, demand, incarnations)
        cost_s = {}
        for kind, call in calls.items():
            costs = []
            for _ in range(ROUNDS):
                for slot in range(demand.replicas):  # so that no lease ends meanwhile
                    await patiently(partial(calls["heartbeat"], slot))
                costs.append(await _cost(text, call, CALLS[kind]))
            cost_s[kind] = statistics.median(costs)
        return RedisLoad(demand, cost_s)
    finally:
        for client in (*clients, text):
            await client.aclose()


async def _join(redis: AsyncRedis, replicas: int) -> list[str]:
    incarnations = [f"{slot:016x}" for slot in range(replicas)]
    for slot, incarnation in enumerate(incarnations):
        await patiently(partial(slots.claim, redis, index_pool.POOL, incarnation, slot))
    return incarnations


async def _calls(
    url: str,
    clients: Sequence[AsyncRedis],
    text: AsyncRedis,
    demand: RedisDemand,
    incarnations: Sequence[str],
) -> dict[str, Callable[[int], Awaitable[Any]]]:
    rng = random.Random(1)
    snapshots = [msgspec.json.encode(load).decode() for load in board_of(demand.replicas)]
    prompts = [[rng.randbytes(KEY_BYTES) for _ in range(demand.segments)] for _ in range(32)]
    for keys in prompts:
        depths = index_pool.depths_of("conversation", demand.segments, demand.replicas)
        index_pool.hold(url, keys, depths)
    index = PrefixIndex(clients[0], index_pool.POOL, PATIENT_S)
    reader = LoadReader(text, index_pool.POOL, LoadBoard(asyncio.get_running_loop().time))

    async def heartbeat(number: int) -> None:
        slot = number % demand.replicas
        client = clients[number % CLIENTS]
        assert await slots.renew(client, index_pool.POOL, slot, incarnations[slot], snapshots[slot])

    async def lookup(number: int) -> None:
        assert await index.lookup(prompts[number % len(prompts)]) is not None

    async def write(number: int) -> None:
        slot = number % demand.replicas
        client = clients[number % CLIENTS]
        fresh = [random.randbytes(KEY_BYTES) for _ in range(demand.computed)]
        # what is evicted was written at this replica's last turn
        old, written[slot] = written.get(slot, []), fresh
        assert await slots.write_bits(client, index_pool.POOL, slot, incarnations[slot], fresh, old)

    async def announcement(number: int) -> None:
        pipe = clients[number % CLIENTS].pipeline(transaction=False)
        pipe.xadd(stream, {b"p": encoded}, maxlen=MAX_LENGTH, approximate=True)
        pipe.expire(stream, EXPIRE_S)
        await pipe.execute()

    async def hearing(number: int) -> None:
        streams: dict[Any, Any] = {stream: "0-0"}
        assert await clients[number % CLIENTS].xread(streams, count=demand.heard_at_once)

    async def board(number: int) -> None:
        await reader.read()

    written: dict[int, list[bytes]] = {}
    stream = stream_key(index_pool.POOL)
    announced = tuple(random.randbytes(8) for _ in range(demand.computed))
    placed = Placed("gateway", "0" * 32, 1, "1", 10_000, 5_000, 0.5, (), announced)
    encoded = msgspec.msgpack.encode(placed)
    return {
        "heartbeat": heartbeat,
        "board": board,
        "lookup": lookup,
        "write": write,
        "announcement": announcement,
        "hearing": hearing,
    }


async def _cost(redis: AsyncRedis, call: Callable[[int], Awaitable[Any]], calls: int) -> float:
    numbers = iter(range(calls))

    async def some() -> None:
        for number in numbers:
            await patiently(partial(call, number))

    before = await _cpu_s(redis)
    await asyncio.gather(*(some() for _ in range(CLIENTS)))
    return (await _cpu_s(redis) - before) / calls


async def _cpu_s(redis: AsyncRedis) -> float:
    info: Any = await redis.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
