"""Engines with tiers under vLLM's model runner V2: one that computes, and one that pulls from it.

    python -m tests.runner_v2.host_tier MODELS

MODELS is the folder that `tests.runner_v2.tiny_models.make` filled. Writes one line of JSON, as
`tests.runner_v2.engines` does: what a follower predicted and the engine did at each step.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from deployments.engine.vllm.adapter import VllmEngine
from deployments.wire.headers import KV_SOURCE_HEADER, KV_TIERS_HEADER, NO_TIERS
from tests.runner_v2.replica import ENGINE, client_of
from tests.served import stdout_for_the_test
from tests.tiers.host_tier import BLOCK, Client, followed

# Each has four blocks, and the device has eight.
DOCUMENTS = [[10 + (7 * i + 31 * n) % 250 for i in range(4 * BLOCK + 5)] for n in range(4)]
ARGS = ENGINE | {"num_gpu_blocks_override": 9}
TIERS = {"host_bytes": 4_000_000, "eviction": "lru", "peers": True}
# About seven blocks.
SMALL_HOST_BYTES = 250_000
DISK_BYTES = 1 << 30


async def flood(client: Client) -> None:
    for other in DOCUMENTS[1:]:
        await client.ask(other, 1)


async def start(models: Path, **tiers: Any) -> VllmEngine:
    return await VllmEngine.start(
        str(models / "target"), "model", ARGS, kv_tiers=TIERS | tiers, names_key="secret"
    )


async def steps(models: Path) -> dict[str, Any]:
    engine = await start(models)
    own, other = DOCUMENTS[:2]
    refusing = {KV_TIERS_HEADER: NO_TIERS}
    async with followed(engine) as client:
        is_v2 = client_of(engine).vllm_config.use_v2_model_runner
        found: dict[str, Any] = {"runner": "V2" if is_v2 else "V1"}
        found["computed"] = await client.ask(own)
        await flood(client)
        found["refused"] = await client.ask(own, headers=refusing)
        await flood(client)
        found["of another tenant"] = await client.ask(own, cache_salt="another")
        await flood(client)
        found["loaded"] = await client.ask(own)
        found["other computed"] = await client.ask(other, headers=refusing)
        found |= await steps_of_puller(models, engine.peer)
        assert await engine.reset_prefix_cache()
        found["reset"] = await client.ask(own)
    return found


async def steps_of_puller(models: Path, source: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        disk = {"folder": folder, "max_bytes": DISK_BYTES, "expire_s": 3600.0}
        engine = await start(models, host_bytes=SMALL_HOST_BYTES, disk=disk)
        async with followed(engine) as client:
            pulled = await client.ask(DOCUMENTS[0], headers={KV_SOURCE_HEADER: source})
            await flood(client)
            return {"pulled": pulled, "read": await client.ask(DOCUMENTS[1])}


if __name__ == "__main__":
    written = stdout_for_the_test()
    told = {"part": "tier", "found": asyncio.run(steps(Path(sys.argv[1])))}
    print(json.dumps(told), file=written, flush=True)
