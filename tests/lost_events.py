"""A real engine whose KV events are lost for good: python -m tests.lost_events

Takes {"model", "redis_url"} as JSON on stdin; writes one line of JSON: how deep the index was for
a prompt of seven segments, and what of it the engine found cached, at each step.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from vllm.config.kv_events import KVEventsConfig

from deployments.engine.serving.confirming import Confirming
from deployments.engine.vllm import adapter
from deployments.engine.vllm.adapter import VllmEngine
from deployments.process.http_server import HttpServer
from deployments.wire.headers import CACHED_TOKENS_HEADER
from router.board.load import LoadReport, ReplicaQueue
from router.index.cached_blocks import CachedBlocks
from router.index.event_stream import EventBatch, EventStream
from router.index.index import PrefixIndex
from router.index.publisher import IndexPublisher, Lease
from router.index.segment_keys import Namespace, SegmentHasher, index_secret
from router.redis.redis_client import connect

POOL = "fleet/pool"
SEGMENT_TOKENS = 128
PROMPT = list(range(1000, 1900))
WITHIN_S = 120.0
ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "enforce_eager": True,
}


class Follower:
    """The engine's events through one stream after another; those between two are missed."""

    def __init__(self, endpoints: tuple[str, str]) -> None:
        self._endpoints = endpoints
        self._stream = EventStream(*endpoints)
        self._listen = asyncio.Event()
        self._listen.set()

    async def batches(self) -> AsyncGenerator[EventBatch, None]:
        while True:
            await self._listen.wait()
            self._stream = EventStream(*self._endpoints)
            async for batch in self._stream.batches():
                yield batch

    def stop_listening(self) -> None:
        self._listen.clear()
        self._stream.close()

    def listen(self) -> None:
        self._listen.set()

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True)
class Lookout:
    """What the index and the engine know of a prompt with these `keys`; `told`: of each step."""

    http: aiohttp.ClientSession
    index: PrefixIndex
    keys: list[bytes]
    told: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, prompt: list[int]) -> int:
        """The tokens of the prompt that the engine found cached."""
        body = {"model": "model", "prompt": prompt, "max_tokens": 1}
        async with self.http.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return int(answer.headers[CACHED_TOKENS_HEADER])

    async def deepest(self, expected: int) -> int:
        """The depth in the index, once it is as expected or the time is up."""
        depth = -1
        for _ in range(int(WITHIN_S / 0.05)):
            depths = await self.index.lookup(self.keys)
            depth = max(depths.values(), default=0) if depths is not None else -1
            if depth == expected:
                break
            await asyncio.sleep(0.05)
        return depth

    async def note(self, step: str, prompt: list[int] | None, expected: int) -> None:
        cached = await self.ask(prompt) if prompt else None
        self.told.append({"step": step, "cached": cached, "depth": await self.deepest(expected)})


async def steps(asked: dict[str, Any]) -> list[dict[str, Any]]:
    # one batch: the shortest memory that vLLM's publisher can have of what it sent
    shortest = functools.partial(KVEventsConfig, buffer_steps=1)
    setattr(adapter, "KVEventsConfig", shortest)  # noqa: B010  # it exports no such name
    engine = await VllmEngine.start(asked["model"], "model", ENGINE_ARGS)
    hasher = SegmentHasher(index_secret("secret"))
    lost = asyncio.Event()

    def on_lost() -> None:
        engine.report_reuse()
        lost.set()

    def snapshot(lease: Lease) -> str:
        return json.dumps({"incarnation": lease.incarnation})

    text, binary = connect(asked["redis_url"]), connect(asked["redis_url"], decode=False)
    held = CachedBlocks(hasher, "m", None, SEGMENT_TOKENS)
    publisher = IndexPublisher(text, POOL, held, snapshot, on_lost=on_lost)
    engine.on_cache_dropped(publisher.cleared)
    follower = Follower(engine.events_at)
    publisher.start(follower.batches)
    index = PrefixIndex(binary, POOL, budget_s=1.0)
    server = HttpServer(
        Confirming(engine.app, lambda: LoadReport(0, ReplicaQueue(*engine.queue())))
    )
    url = await server.start("127.0.0.1")
    keys = hasher.keys(Namespace("m"), PROMPT, SEGMENT_TOKENS)
    async with aiohttp.ClientSession(url) as http:
        looking = Lookout(http, index, keys)
        await looking.note("first", PROMPT, 7)
        follower.stop_listening()
        for other in range(3):
            await looking.ask([*range(5000 + other, 5300 + other)])
        follower.listen()
        await looking.ask([*range(7000, 7300)])  # the next events show the gap
        await asyncio.wait_for(lost.wait(), WITHIN_S)
        await looking.note("lost", None, 0)
        await looking.note("reused", PROMPT, 7)
        assert await engine.reset_prefix_cache()
        await looking.note("reset", None, 0)
        await looking.note("again", PROMPT, 7)
    await publisher.stop()
    follower.close()
    await server.drain()
    engine.stop()
    for client in (text, binary):
        await client.aclose()
    return looking.told


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    print(json.dumps(asyncio.run(steps(json.load(sys.stdin)))), file=answers, flush=True)
