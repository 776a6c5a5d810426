"""An engine that pulls from one that stops in the middle of a copy:
python -m tests.tiers.interrupted_copies

Takes {"model", "folder"} as JSON on stdin. Writes one line of JSON:

    steps    what the pulling engine answered
    computed the token ids of the answers to documents, by the engine that computed them first
    over     pairs of token ids of the documents that used the host's memory after an aborted copy:
             computed, and loaded after the source went on
    log      what the engines logged
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
from vllm.config import KVTransferConfig

from deployments.engine.vllm import adapter
from deployments.engine.vllm.kv_tiers.host_tier import PEER_TIER, host_tier
from tests.served import log_to, stdout_for_the_test
from tests.tiers import stopping_tier
from tests.tiers.host_tier import ENGINE_ARGS, Client, document, followed
from tests.tiers.peers import SHUN_S, Two, core_of
from tests.waiting import until

# The documents of a dozen requests. The pulling engine has room for five, and its device for four.
SOURCE_BYTES, PULLER_BYTES = 24_000_000, 7_000_000
STOPPED, KILLED, BEFORE, AFTER = 1, 2, 0, 3
OVER = range(20, 25)
WRITTEN_S = 2.0


def stopping(tiers: Mapping[str, Any], peer_host: str, address_file: Path) -> KVTransferConfig:
    """The setting of an engine that stops."""
    config = host_tier(tiers, peer_host, address_file)
    for tier in config.kv_connector_extra_config["secondary_tiers"]:
        assert tier["type"] == PEER_TIER
        tier["module_path"] = stopping_tier.__name__
    return config


async def interrupted(two: Two, flag: Path, number: int, then: str) -> dict[str, Any]:
    """Pull a document whose copy is interrupted."""
    await asyncio.to_thread(flag.touch)
    pulling = asyncio.create_task(two.pull(number))
    await until(lambda: two.process.status() == psutil.STATUS_STOPPED)
    if then == "kill":
        two.process.kill()
    return await pulling


async def played(two: Two, flag: Path) -> dict[str, Any]:
    await two.compute([BEFORE, STOPPED, KILLED, AFTER])
    steps = {"before": await two.pull(BEFORE)}
    steps["stopped"] = await interrupted(two, flag, STOPPED, "stop")
    computed = [await two.of_puller.ask(document(number)) for number in OVER]
    two.process.resume()
    # the source answers after it has written
    await two.of_source.ask(document(30))
    await asyncio.sleep(WRITTEN_S)
    loaded = [await two.of_puller.ask(document(number)) for number in OVER]
    await asyncio.sleep(SHUN_S)
    steps["after"] = await two.pull(AFTER)
    steps["killed"] = await interrupted(two, flag, KILLED, "kill")
    steps["pulled before the kill"] = await two.of_puller.ask(document(AFTER))
    over = [
        [[one["token_ids"], one["loadable"]], [other["token_ids"], other["reused"]]]
        for one, other in zip(computed, loaded, strict=True)
    ]
    return {"steps": steps, "over": over}


async def told(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(job["folder"])
    log, flag = folder / "log", folder / "stops"
    os.environ[stopping_tier.STOPS_AT] = str(flag)
    log_to(log)

    async def engine(host_bytes: int) -> adapter.VllmEngine:
        tiers = {"host_bytes": host_bytes, "eviction": "lru", "peers": True}
        return await adapter.VllmEngine.start(
            job["model"], "model", ENGINE_ARGS, kv_tiers=tiers, names_key="secret"
        )

    adapter.host_tier = stopping  # type: ignore[attr-defined]  # the adapter imports it
    source = await engine(SOURCE_BYTES)
    process = core_of()
    adapter.host_tier = host_tier  # type: ignore[attr-defined]
    puller = await engine(PULLER_BYTES)
    async with AsyncExitStack() as stack:
        clients: list[Client] = [
            await stack.enter_async_context(followed(of)) for of in (source, puller)
        ]
        two = Two(source, puller, clients[0], clients[1], process)
        found = await played(two, flag)
    return {**found, "computed": two.computed, "log": log.read_text()}


if __name__ == "__main__":
    answers = stdout_for_the_test()
    print(json.dumps(asyncio.run(told(json.load(sys.stdin)))), file=answers, flush=True)
    os._exit(0)  # one of the engines is dead
