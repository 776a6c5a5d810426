"""What a fake engine writes to Redis, through the real publisher: its load, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import redis

from deployments.gateway.intake.cache_salt import CacheSalts
from router.index.cached_blocks import HOST_MEDIUM, CachedBlocks, Tier
from router.index.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from router.index.publisher import IndexPublisher, Lease
from router.index.segment_keys import SegmentHasher, index_secret
from router.index.slots import segment_prefix
from router.redis.lease_signature import LeaseSigner
from router.redis.redis_client import connect
from router.redis.signature import Signer
from tests.fakes.engine import SECRET, FakeEngine
from tests.router.index_engine import Feed
from tests.router.loads import changed
from tests.waiting import until

# What gateways call the model, and so what its keys begin with.
MODEL_PATH = "embedded"
SEGMENT_TOKENS = BLOCK_TOKENS = 16
TENANT = "tenant"


class Publishing:
    """One engine's place in a pool's index, from `start` to `stop`. `lease` is the latest."""

    def __init__(self, engine: FakeEngine, redis_url: str, pool: str) -> None:
        engine.segment_tokens = SEGMENT_TOKENS
        self.lease: Lease | None = None
        self._engine = engine
        self._pool = pool
        self._redis = connect(redis_url)
        self._look = redis.Redis.from_url(redis_url)
        self._feed = Feed()
        self._signer = LeaseSigner(Signer(SECRET), pool)
        hasher = SegmentHasher(index_secret(SECRET))
        rates = {Tier.HOST: engine.host_load_rate, Tier.DISK: engine.disk_load_rate}
        tiers = [tier for tier, rate in rates.items() if rate]
        self._held = CachedBlocks(hasher, MODEL_PATH, None, SEGMENT_TOKENS, tiers=tiers)
        self._publisher = IndexPublisher(self._redis, pool, self._held, self._snapshot)

    def start(self) -> None:
        self._publisher.start(self._feed.batches)

    async def stop(self) -> None:
        await self._publisher.stop()
        await self._redis.aclose()
        self._look.close()

    @property
    def published(self) -> asyncio.Event:
        """Set once gateways can know the engine."""
        return self._publisher.published

    async def caches(
        self,
        token_ids: Sequence[int],
        cache_salt: str | None = None,
        lora: str | None = None,
        tenant: str = TENANT,
    ) -> None:
        """The engine has computed this prompt; returns when the index knows all of it.

        `cache_salt` is what the tenant's client sent.
        """
        held = len(self._held.keys()) + len(token_ids) // SEGMENT_TOKENS
        salt = CacheSalts(SECRET).of("/v1/completions", tenant, None, {"cache_salt": cache_salt})
        self.stored(token_ids, salt, lora)
        await self.holds(held)

    async def offloads(self, token_ids: Sequence[int], medium: str = HOST_MEDIUM) -> None:
        """The engine has computed this prompt and has it only in one of its tiers now; returns when
        the index knows."""
        salt = CacheSalts(SECRET).of("/v1/completions", TENANT, None, {})
        event = _stored(list(token_ids), salt, None)
        hashes = event.block_hashes
        held = len(self._held.keys()) + len(hashes)
        self._feed.put(event, BlockStored(hashes, None, [], 0, medium=medium), BlockRemoved(hashes))
        await self.holds(held)

    def stored(
        self, token_ids: Sequence[int], engine_salt: str | None, lora: str | None = None
    ) -> None:
        """The engine has computed this prompt, whose request had this salt when it got there."""
        self._feed.put(_stored(list(token_ids), engine_salt, lora))

    async def holds(self, segments: int) -> None:
        """Returns when the engine holds N segments, and the index knows."""
        await until(lambda: len(self._held.keys()) == segments and self._written())

    async def forgets(self) -> None:
        """The engine has dropped its cache; returns when the index knows."""
        keys = self._held.keys()
        self._feed.put(AllBlocksCleared())
        await until(lambda: not any(self._has_bit(key) for key in keys))

    def _snapshot(self, lease: Lease) -> str:
        self.lease = lease
        report = self._engine.report()
        load = changed(
            self._engine.load(),
            slot=lease.slot,
            incarnation=lease.incarnation,
            synced=lease.synced,
            running=report.queue.running,
            queued_host_tokens=report.queue.host_tokens,
            queued_disk_tokens=report.queue.disk_tokens,
            queued_peer_tokens=report.queue.peer_tokens,
            sequence=report.sequence,
            arrived=self._engine.tickets.lately_arrived(),
        )
        return self._signer.signed(lease.slot, load.to_json())

    def _written(self) -> bool:
        keys = self._held.keys()
        return all(self._has_bit(key) for key in keys)

    def _has_bit(self, key: bytes) -> bool:
        assert self.lease is not None
        return self._look.getbit(segment_prefix(self._pool) + key, self.lease.slot) == 1


def _stored(token_ids: list[int], cache_salt: str | None, lora: str | None) -> BlockStored:
    blocks = len(token_ids) // BLOCK_TOKENS
    ends = [BLOCK_TOKENS * (i + 1) for i in range(blocks)]
    adapter = () if lora is None else (lora,)
    extra_keys = [adapter or None for _ in ends]
    if cache_salt is not None:
        extra_keys[0] = (*adapter, cache_salt)
    return BlockStored(
        block_hashes=[repr((lora, cache_salt, token_ids[:end])).encode() for end in ends],
        parent_block_hash=None,
        token_ids=token_ids[: ends[-1]],
        block_size=BLOCK_TOKENS,
        lora_name=lora,
        extra_keys=[*extra_keys],
    )
