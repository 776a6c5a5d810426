"""What each replica is busy with: published by replicas, read by every gateway.

    key                           value                   lifetime
    {afx:<pool>}:replicas         set of replica ids      until a reader finds the load gone
    {afx:<pool>}:load:<replica>   `ReplicaLoad` as JSON   LOAD_TTL_S, renewed while it lives

The hash tag keeps a pool's keys on one shard of a Redis Cluster. A replica that stops
publishing disappears by itself. Nothing here raises into a request: while Redis is slow
or gone, `LoadBoard.loads` empties within LOAD_TTL_S and placement goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from router.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger(__name__)

PUBLISH_PERIOD_S = 0.1
LOAD_TTL_S = 2.0
# A placement is in the next snapshot once it has been published and read.
SNAPSHOT_LAG_S = 2.5 * PUBLISH_PERIOD_S
REDIS_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class ReplicaLoad:
    """One replica's state, as its engine reports it.

    Rates are tokens per second, times are seconds, `kv_use` is the used share of the KV
    cache, 0 to 1. `queued_prefill_tokens` counts the prompts that have no first token yet;
    `url` is the replica's own HTTP server.
    """

    replica_id: str
    waiting: int
    running: int
    queued_prefill_tokens: int
    kv_use: float
    prefill_rate: float
    inter_token_latency: float
    url: str
    node_ip: str


def _replicas_key(pool: str) -> str:
    return f"{{afx:{pool}}}:replicas"


def _load_key(pool: str, replica_id: str) -> str:
    return f"{{afx:{pool}}}:load:{replica_id}"


async def publish(redis: AsyncRedis, pool: str, load: ReplicaLoad) -> None:
    """Write one snapshot. Raises one of REDIS_FAILURES; the caller tries again."""
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        pipe = redis.pipeline(transaction=False)
        pipe.sadd(_replicas_key(pool), load.replica_id)
        pipe.set(
            _load_key(pool, load.replica_id),
            json.dumps(dataclasses.asdict(load)),
            px=int(LOAD_TTL_S * 1000),
        )
        await pipe.execute()


async def withdraw(redis: AsyncRedis, pool: str, replica_id: str) -> None:
    """Take a replica off the board at once. Raises one of REDIS_FAILURES."""
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        pipe = redis.pipeline(transaction=False)
        pipe.srem(_replicas_key(pool), replica_id)
        pipe.delete(_load_key(pool, replica_id))
        await pipe.execute()


async def read(redis: AsyncRedis, pool: str) -> dict[str, ReplicaLoad]:
    """The pool's live snapshots. Raises one of REDIS_FAILURES."""
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        members = await cast(Awaitable[set[str]], redis.smembers(_replicas_key(pool)))
        if not members:
            return {}
        replica_ids = sorted(members)
        values = await redis.mget([_load_key(pool, replica_id) for replica_id in replica_ids])
        gone = [r for r, value in zip(replica_ids, values, strict=True) if value is None]
        if gone:
            await redis.srem(_replicas_key(pool), *gone)
    loads = (ReplicaLoad(**json.loads(value)) for value in values if value is not None)
    return {load.replica_id: load for load in loads}


class LoadBoard:
    """One pool's loads as this gateway sees them: the last snapshots plus what it placed since.

    `loads` and `placed` are plain memory; all I/O is in the background task `run`.
    """

    def __init__(
        self, redis: AsyncRedis, pool: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._pool = pool
        self._clock = clock
        self._snapshots: dict[str, ReplicaLoad] = {}
        self._read_at = float("-inf")
        self._placements: list[tuple[float, str, int]] = []

    async def run(self) -> None:
        """Refresh the snapshots until cancelled."""
        failing = False
        while True:
            try:
                self.update(await read(self._redis, self._pool))
                failing = False
            except (*REDIS_FAILURES, TypeError, ValueError) as error:
                if not failing:
                    logger.warning("load board of %s not readable: %s", self._pool, error)
                failing = True
            await asyncio.sleep(PUBLISH_PERIOD_S)

    def update(self, snapshots: Mapping[str, ReplicaLoad]) -> None:
        self._snapshots = dict(snapshots)
        self._read_at = self._clock()

    def placed(self, replica_id: str, prompt_tokens: int) -> None:
        """Count a request against a replica until the snapshots show it."""
        self._placements.append((self._clock(), replica_id, prompt_tokens))

    def loads(self) -> dict[str, ReplicaLoad]:
        """Every replica known to be live; empty while Redis does not answer."""
        now = self._clock()
        if now - self._read_at > LOAD_TTL_S:
            return {}
        self._placements = [p for p in self._placements if now - p[0] < SNAPSHOT_LAG_S]
        # A pool's engines are alike: what one has learned is true of all, and the chance of
        # what each was asked must not tilt the balance.
        rates = [load.prefill_rate for load in self._snapshots.values()]
        loads = {
            replica_id: dataclasses.replace(load, prefill_rate=sum(rates) / len(rates))
            for replica_id, load in self._snapshots.items()
        }
        for _, replica_id, prompt_tokens in self._placements:
            if load := loads.get(replica_id):
                loads[replica_id] = dataclasses.replace(
                    load,
                    waiting=load.waiting + 1,
                    queued_prefill_tokens=load.queued_prefill_tokens + prompt_tokens,
                )
        return loads


class LoadPublisher:
    """Publishes `measure()` at PUBLISH_PERIOD_S while it runs; withdraws when it stops."""

    def __init__(self, redis: AsyncRedis, pool: str, measure: Callable[[], ReplicaLoad]) -> None:
        self._redis = redis
        self._pool = pool
        self._measure = measure
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        with contextlib.suppress(*REDIS_FAILURES):
            await withdraw(self._redis, self._pool, self._measure().replica_id)

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                await publish(self._redis, self._pool, self._measure())
                failing = False
            except REDIS_FAILURES as error:
                if not failing:
                    logger.warning("load of a replica of %s not published: %s", self._pool, error)
                failing = True
            await asyncio.sleep(PUBLISH_PERIOD_S)
