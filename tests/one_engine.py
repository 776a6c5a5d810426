"""One replica's engine outside Ray, asked once: python -m tests.one_engine

Takes {"model", "engine_args", "prompts", "max_tokens"} as JSON on stdin; writes, as one line of
JSON, the greedy answers' token ids and the titles of the engine's processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import aiohttp
import psutil

from deployments.engine.vllm.adapter import VllmEngine
from deployments.process.http_server import HttpServer


async def answer(asked: dict[str, Any]) -> dict[str, Any]:
    engine = await VllmEngine.start(asked["model"], "model", asked["engine_args"])
    server = HttpServer(engine.app)
    url = await server.start("127.0.0.1")
    body = {
        "model": "model",
        "prompt": asked["prompts"],
        "max_tokens": asked["max_tokens"],
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{url}/v1/completions", json=body) as r,
        ):
            said = await r.json()
            assert r.status == 200, said
        children = psutil.Process().children(recursive=True)
        return {
            "token_ids": [choice["token_ids"] for choice in said["choices"]],
            "processes": sorted(child.cmdline()[0] for child in children if child.cmdline()),
        }
    finally:
        await server.drain()
        engine.stop()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    print(json.dumps(asyncio.run(answer(json.load(sys.stdin)))), file=answers, flush=True)
