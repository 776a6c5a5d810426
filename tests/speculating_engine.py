"""One replica's engine outside Ray that speculates: python -m tests.speculating_engine

Takes {"model", "engine_args", "prompts", "max_tokens", "until", "within_s"} as JSON on stdin. Asks
for the greedy answers to all prompts, one after another, round after round: until speculation was
off for a whole round ("off"), or what it gains is known ("known"), or the time is up. Writes one
line of JSON: the token ids of each round, and what is known of the speculation in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import aiohttp
import msgspec

from deployments.engine.vllm.adapter import VllmEngine
from deployments.process.http_server import HttpServer


async def rounds(asked: dict[str, Any]) -> dict[str, Any]:
    engine = await VllmEngine.start(asked["model"], "model", asked["engine_args"], "stop")
    server = HttpServer(engine.app)
    url = await server.start("127.0.0.1")
    answers: list[list[list[int]]] = []

    async def ask(http: aiohttp.ClientSession, prompt: str) -> list[int]:
        body = {
            "model": "model",
            "prompt": prompt,
            "max_tokens": asked["max_tokens"],
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        async with http.post("/v1/completions", json=body) as answer:
            said = await answer.json()
            assert answer.status == 200, said
            ids: list[int] = said["choices"][0]["token_ids"]
            return ids

    ends = time.monotonic() + asked["within_s"]
    known, is_over = None, False
    async with aiohttp.ClientSession(url) as http:
        while not is_over and time.monotonic() < ends:
            was_off = known is not None and not known.on
            answers.append([await ask(http, prompt) for prompt in asked["prompts"]])
            known = engine.speculation()
            gain = known.speedup if known is not None else None
            is_over = was_off if asked["until"] == "off" else gain is not None
    await server.drain()
    engine.stop()
    return {"answers": answers, "known": msgspec.to_builtins(known)}


if __name__ == "__main__":
    written = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    print(json.dumps(asyncio.run(rounds(json.load(sys.stdin)))), file=written, flush=True)
