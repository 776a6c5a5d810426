"""Two real engines of a vision model with tiers: python -m tests.tiers.images

Takes {"folder"} as JSON on stdin. Writes one line of JSON:

    computed        the text of an answer about each image, and the reused tokens of its prompt
    steps           the same by the pulling engine, for each step
    disk_load_rate  tokens that the pulling engine read per second
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from deployments.engine.vllm.adapter import VllmEngine
from deployments.wire.headers import CACHED_TOKENS_HEADER, KV_SOURCE_HEADER
from tests.served import stdout_for_the_test
from tests.tiers.host_tier import BLOCK, Client, followed
from tests.vision import tiny_idefics
from tests.vision.asking import MAX_TOKENS, QUESTION, chat_of, png

ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": tiny_idefics.MAX_MODEL_LEN,
    "max_num_seqs": 2,
    "max_num_batched_tokens": tiny_idefics.MAX_MODEL_LEN,
    "enforce_eager": True,
    "block_size": BLOCK,
    "num_gpu_blocks_override": 20,
}
# The host's memory of the source has room for all prompts, that of the other engine for one. Each
# has about ten blocks, and the device has room for two.
SOURCE_BYTES, PULLER_BYTES = 8_000_000, 500_000
LONG = f"{QUESTION} " * 20
COLORS = ("red", "blue", "green", "black")


async def ask(client: Client, color: str, source: str = "") -> dict[str, Any]:
    body = {
        "model": "model",
        "messages": chat_of(png(color), text=LONG),
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    headers = {KV_SOURCE_HEADER: source} if source else {}
    async with client.http.post("/v1/chat/completions", json=body, headers=headers) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        text = said["choices"][0]["message"]["content"]
        return {"text": text, "reused": int(answer.headers[CACHED_TOKENS_HEADER])}


async def told(folder: Path) -> dict[str, Any]:
    model = folder / "model"
    await asyncio.to_thread(tiny_idefics.make, model)
    disk = {"folder": str(folder / "files"), "max_bytes": 1 << 30, "expire_s": 3600.0}
    tiers = {"host_bytes": SOURCE_BYTES, "eviction": "lru", "peers": True}

    async def engine(**more: Any) -> VllmEngine:
        return await VllmEngine.start(
            str(model), "model", ENGINE_ARGS, kv_tiers=tiers | more, names_key="secret"
        )

    source, puller = await engine(), await engine(host_bytes=PULLER_BYTES, disk=disk)
    async with AsyncExitStack() as stack:
        of_source, of_puller = [
            await stack.enter_async_context(followed(of)) for of in (source, puller)
        ]
        computed = {color: await ask(of_source, color) for color in COLORS[:3]}
        steps = {"pulled": await ask(of_puller, "red", source.peer)}
        steps["unknown"] = await ask(of_puller, "black", source.peer)
        for color in ("blue", "green", "black", "red"):
            await ask(of_puller, color)
        steps["read"] = await ask(of_puller, "blue")
        rate = puller.stats.disk_load_rate
    return {"computed": computed, "steps": steps, "disk_load_rate": rate}


if __name__ == "__main__":
    answers = stdout_for_the_test()
    folder = Path(json.load(sys.stdin)["folder"])
    print(json.dumps(asyncio.run(told(folder))), file=answers, flush=True)
