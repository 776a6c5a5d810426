"""A real engine with a host tier, whose blocks a follower knows: python -m tests.tiers.host_tier

Takes {"model", "requests", "seed", "host_bytes"} as JSON on stdin. Writes one line of JSON with
what the follower predicted and what the engine did, at each step:

    steps    name, predicted and cached tokens of a prompt, and the token ids of its answer
    random   predicted and cached tokens of each of the random requests
    named    the names of shared memory of host tiers, while the engine runs
    host_load_rate  tokens that the engine loaded per second
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from deployments.engine.vllm.adapter import VllmEngine
from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    KV_TIERS_HEADER,
    NO_TIERS,
    RESUMABLE_HEADER,
    RESUME_FIELD,
)
from deployments.wire.resumable import Known
from router.index.cached_blocks import CachedBlocks, OnWritten, Tier, tier_key
from router.index.event_stream import EventStream
from router.index.kv_events import AllBlocksCleared
from router.index.segment_keys import Namespace, SegmentHasher, index_secret
from tests.served import at_a_url, stdout_for_the_test

BLOCK = 32
ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 2,
    "enforce_eager": True,
    "block_size": BLOCK,
    "num_gpu_blocks_override": 28,
}
PROMPT, ANSWER = 200, 8
DOCUMENTS = 12
# The events of a step arrive within this time.
SETTLED_S = 0.3


def document(number: int, tokens: int = PROMPT) -> list[int]:
    return [1000 + 300 * number + i % 250 for i in range(tokens)]


def greedy(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    """A request for an answer of this length."""
    return {
        "model": "model",
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


@dataclass
class Follower:
    """What the engine reports of its blocks."""

    engine: VllmEngine
    events: EventStream
    tiers: Sequence[Tier] = (Tier.HOST,)
    on_written: OnWritten | None = None
    hasher: SegmentHasher = field(default_factory=lambda: SegmentHasher(index_secret("secret")))

    def __post_init__(self) -> None:
        self.blocks = CachedBlocks(
            self.hasher,
            "m",
            None,
            BLOCK,
            self.engine.kv_blocks,
            tiers=self.tiers,
            on_written=self.on_written,
        )
        self.engine.on_cache_dropped(self._cleared)

    def _cleared(self) -> None:
        self.blocks.apply([AllBlocksCleared()])

    async def follow(self) -> None:
        async for batch in self.events.batches():
            assert not batch.lost
            self.blocks.apply(batch.events)

    def tokens(
        self, prompt: Sequence[int], salt: str | None = None, lora: str | None = None
    ) -> tuple[int, int]:
        """The tokens of the prompt in the cache, and those in the cache or in any tier."""
        namespace, held = Namespace("m", None, lora, salt), set(self.blocks.keys())
        keys = self.hasher.keys(namespace, prompt, BLOCK)[: (len(prompt) - 1) // BLOCK]
        cached = sum(key in held for key in keys) * BLOCK
        return cached, sum(tier_key(key, self.tiers[-1]) in held for key in keys) * BLOCK


@dataclass
class Client:
    http: aiohttp.ClientSession
    follower: Follower

    async def ask(
        self,
        prompt: Sequence[int],
        max_tokens: int = ANSWER,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        await asyncio.sleep(SETTLED_S)
        salt, lora = more.get("cache_salt"), more.get("model")
        cached, loadable = self.follower.tokens(prompt, salt, lora)
        body = {**greedy(prompt, max_tokens), **more}
        async with self.http.post("/v1/completions", json=body, headers=headers) as answer:
            said = await answer.json()
            assert answer.status == 200, said
            return {
                "in_cache": cached,
                "loadable": loadable,
                "reused": int(answer.headers[CACHED_TOKENS_HEADER]),
                "in_usage": (said["usage"].get("prompt_tokens_details") or {}).get("cached_tokens"),
                "token_ids": said["choices"][0]["token_ids"],
            }

    async def stream(
        self, prompt: Sequence[int], max_tokens: int, known: Known | None = None
    ) -> dict[str, Any]:
        """A stream that another engine could resume, or the rest of one of which it has `known`."""
        await asyncio.sleep(SETTLED_S)
        body = {**greedy(prompt, max_tokens), "stream": True}
        if known is not None:
            body[RESUME_FIELD] = msgspec.to_builtins(known)
        headers = {RESUMABLE_HEADER: "1"}
        async with self.http.post("/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            events = [line[6:] async for line in answer.content if line.startswith(b"data: {")]
            return {
                "made_by": answer.headers[RESUMABLE_HEADER],
                "token_ids": [
                    token
                    for event in map(json.loads, events)
                    for choice in event["choices"]
                    for token in choice.get("token_ids") or ()
                ],
            }

    async def flood(self, first: int) -> None:
        """Other documents, until the device has no room for earlier ones."""
        for number in range(first, first + 4):
            await self.ask(document(number))


@asynccontextmanager
async def followed(engine: VllmEngine) -> AsyncIterator[Client]:
    """Serve the engine to a client that follows its events. Both end with it."""
    follower = Follower(engine, EventStream(*engine.events_at))
    following = asyncio.create_task(follower.follow())
    try:
        async with at_a_url(engine) as url, aiohttp.ClientSession(url) as http:
            yield Client(http, follower)
    finally:
        following.cancel()
        follower.events.close()


def memory_of_host_tiers() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob("vllm_offload_*")]


async def told(asked: dict[str, Any]) -> dict[str, Any]:
    tiers = {"host_bytes": asked["host_bytes"], "eviction": "lru"}
    engine = await VllmEngine.start(asked["model"], "model", ENGINE_ARGS, kv_tiers=tiers)
    steps: dict[str, Any] = {}
    async with followed(engine) as client:
        own = document(0)
        steps["computed"] = await client.ask(own)
        steps["in place"] = await client.ask(own)
        await client.flood(1)
        steps["refused"] = await client.ask(own, headers={KV_TIERS_HEADER: NO_TIERS})
        await client.flood(5)
        steps["loaded"] = await client.ask(own)
        await client.flood(1)
        steps["of another tenant"] = await client.ask(own, cache_salt="another")
        answered = [*own, *steps["loaded"]["token_ids"]]
        long = await client.ask(own, 64)
        await client.flood(5)
        steps["next turn"] = await client.ask([*own, *long["token_ids"], *answered[-3:]])
        steps["whole"] = whole = await client.stream(own, 40)
        await client.flood(1)
        ids = tuple(whole["token_ids"][:10])
        known = Known(((0, ids),), events=0, cached_tokens=0, created=0, made_by=whole["made_by"])
        steps["resumed"] = await client.stream(own, 40, known)
        rng = random.Random(asked["seed"])
        some = []
        for _ in range(asked["requests"]):
            # of whole blocks, an engine may also load the last one, which it has to compute
            length = rng.choice([n for n in range(BLOCK, PROMPT) if n % BLOCK])
            salted: dict[str, Any] = rng.choice([{}, {}, {"cache_salt": "a"}])
            prompt = document(rng.randrange(DOCUMENTS), length)
            of = await client.ask(prompt, 1, **salted)
            some.append([of["in_cache"], of["loadable"], of["reused"]])
        assert await engine.reset_prefix_cache()
        steps["reset"] = await client.ask(own)
        named = await asyncio.to_thread(memory_of_host_tiers)
        rate = engine.stats.host_load_rate
    return {"steps": steps, "random": some, "named": named, "host_load_rate": rate}


if __name__ == "__main__":
    answers = stdout_for_the_test()
    print(json.dumps(asyncio.run(told(json.load(sys.stdin)))), file=answers, flush=True)
