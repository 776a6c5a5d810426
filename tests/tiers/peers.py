"""Two real engines that pull blocks from each other: python -m tests.tiers.peers

Takes {"model", "other_model", "requests", "seed", "host_bytes", "folder"} as JSON on stdin. Writes
one line of JSON:

    steps    the tokens that the pulling engine reused for a prompt, the seconds, and the token ids
             of its answer
    computed the token ids of the answers to documents, by the engine that computed them first
    random   pairs of token ids: computed by one engine, and answered by the other with a pull
    slept    whether an engine that serves others fell asleep
    idle     the phases of an engine's loop while nothing happens
    rate     tokens that the pulling engine pulled per second
    taken    the prefixes that it took over from a source that was killed, and their tokens
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from deployments.engine.handover.handovers import NEW, Handovers
from deployments.engine.handover.sealed_handover import HandedPrefix, Handover
from deployments.engine.vllm.adapter import VllmEngine
from deployments.engine.vllm.watch.heartbeat import HeartbeatFile
from deployments.wire.headers import KV_SOURCE_HEADER, KV_TIERS_HEADER, NO_TIERS
from router.board.load import ReplicaLoad
from router.index.hot_prefixes import HotPrefixes
from router.index.segment_keys import pack
from tests.router.loads import load
from tests.served import stdout_for_the_test
from tests.tiers.host_tier import BLOCK, ENGINE_ARGS, Client, document, followed

IDLE_S, IDLE_LOOKS, SLEEP_S = 0.05, 40, 30
# An engine that did not answer is asked again after this time.
SHUN_S = 11.0
# A discard port: nothing listens there.
NOBODY = "127.0.0.1:9"


async def asked(client: Client, number: int, source: str, **more: Any) -> dict[str, Any]:
    """The answer of an engine that may pull the document from `source`."""
    headers = {KV_SOURCE_HEADER: source, **more.pop("headers", {})}
    began = time.monotonic()
    answer = await client.ask(document(number), headers=headers, **more)
    return {**answer, "seconds": time.monotonic() - began}


def core_of() -> psutil.Process:
    """The process of the only engine."""
    children = psutil.Process().children(recursive=True)
    (core,) = [of for of in children if "EngineCore" in of.name()]
    return core


async def phases_of(beats: HeartbeatFile) -> list[str]:
    """The phases of an engine's loop, at some moments."""
    phases = []
    for _ in range(IDLE_LOOKS):
        await asyncio.sleep(IDLE_S)
        phases.append(beats.core.phase.name)
    return phases


def laid_out(heartbeat: Path) -> Path:
    with heartbeat.open("wb") as file:
        HeartbeatFile.lay_out(file.fileno())
    return heartbeat


@dataclass
class Source:
    """A pool whose only other replica hands this over."""

    handover: Handover

    async def loads(self) -> list[ReplicaLoad]:
        return [load()]

    async def ask(self, load: ReplicaLoad) -> Handover:
        return self.handover


@dataclass
class Two:
    """An engine that computes documents, and one that pulls them."""

    source: VllmEngine
    puller: VllmEngine
    of_source: Client
    of_puller: Client
    process: psutil.Process  # the source's
    computed: dict[int, list[int]] = field(default_factory=dict)
    taken: tuple[int, int] = (0, 0)

    async def compute(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.computed[number] = (await self.of_source.ask(document(number)))["token_ids"]

    async def pull(self, number: int, **more: Any) -> dict[str, Any]:
        return await asked(self.of_puller, number, self.source.peer, **more)

    async def steps(self) -> dict[str, Any]:
        await self.compute(range(12))
        first = {"pulled": await self.pull(11), "again": await self.pull(11)}
        await self.of_puller.flood(41)
        return {
            **first,
            "after eviction": await self.of_puller.ask(document(11)),
            "refused": await self.pull(10, headers={KV_TIERS_HEADER: NO_TIERS}),
            "of another tenant": await self.pull(9, cache_salt="another"),
            "unknown": await self.pull(40),
            "two answers": await self.pull(8, n=2, temperature=1),
            "of nobody": await asked(self.of_puller, 7, NOBODY),
            "of no address": await asked(self.of_puller, 6, "nonsense"),
        }

    async def take_over(self, numbers: Sequence[int]) -> tuple[int, int]:
        """The prefixes, and their tokens, that the puller takes over from a source that is killed
        before the second one."""
        hot = HotPrefixes(self.of_puller.follower.hasher, "m", None, BLOCK)
        offered = [HandedPrefix(pack(document(number)), None) for number in numbers]
        pulls = iter([None, self.process.kill])

        async def pull(*asked: Any) -> int:
            if (then := next(pulls)) is not None:
                then()
            return await self.puller.pull(*asked)

        sizes = ("peer", "host_tokens", "kv_capacity_tokens", "max_sequences", "max_model_len")
        engine: Any = SimpleNamespace(
            queue=self.puller.queue,
            pull=pull,
            **{name: getattr(self.puller, name) for name in sizes},
        )
        others: Any = Source(Handover(self.source.peer, tuple(offered)))
        cached = self.of_puller.follower.blocks
        handovers = Handovers(engine, lambda: False, hot, cached, others, lambda: 0.0)
        await handovers.take_over()
        return handovers.taken[NEW]

    async def random(self, requests: int, seed: int) -> list[list[list[int]]]:
        rng, pairs = random.Random(seed), []
        sides = [(self.of_source, self.source), (self.of_puller, self.puller)]
        for _ in range(requests):
            number = rng.randrange(50, 54)
            (client, engine), (other, _) = rng.sample(sides, 2)
            one = await client.ask(document(number))
            two = await asked(other, number, engine.peer)
            pairs.append([one["token_ids"], two["token_ids"]])
        return pairs

    async def faults(self) -> dict[str, Any]:
        await self.compute(range(20, 28))
        steps = {"before the hang": await self.pull(27)}
        self.process.suspend()
        steps["of a hung engine"] = await self.pull(26)
        self.process.resume()
        await asyncio.sleep(SHUN_S)
        steps["after the hang"] = await self.pull(25)
        self.taken = await self.take_over([20, 21, 22])
        steps["lost with its source"] = await self.of_puller.ask(document(21))
        steps["of a killed engine"] = await self.pull(24)
        steps["without a source"] = await self.of_puller.ask(document(60))
        return steps


async def told(job: dict[str, Any]) -> dict[str, Any]:
    tiers = {"host_bytes": job["host_bytes"], "eviction": "lru", "peers": True}
    heartbeat = laid_out(Path(job["folder"], "heartbeat"))

    async def engine(model: str, secret: str = "secret", **more: Any) -> VllmEngine:
        return await VllmEngine.start(
            model, "model", ENGINE_ARGS, kv_tiers=tiers, names_key=secret, **more
        )

    source = await engine(job["model"], heartbeat=heartbeat)
    process = core_of()
    puller = await engine(job["model"])
    other = await engine(job["other_model"])
    stranger = await engine(job["model"], secret="another")
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(followed(of))
            for of in (source, puller, other, stranger)
        ]
        two = Two(source, puller, clients[0], clients[1], process)
        steps = await two.steps()
        steps["of other weights"] = await asked(clients[2], 11, source.peer)
        steps["of another fleet"] = await asked(clients[3], 11, source.peer)
        pairs = await two.random(job["requests"], job["seed"])
        rate = puller.stats.peer_load_rate
        phases = await phases_of(HeartbeatFile(heartbeat))
        await asyncio.wait_for(source.sleep(), SLEEP_S)
        await source.wake_up()
        steps |= await two.faults()
    return {
        "steps": steps,
        "computed": two.computed,
        "random": pairs,
        "slept": True,
        "idle": phases,
        "rate": rate,
        "taken": two.taken,
    }


if __name__ == "__main__":
    answers = stdout_for_the_test()
    print(json.dumps(asyncio.run(told(json.load(sys.stdin)))), file=answers, flush=True)
    os._exit(0)  # one of the engines is dead
