"""One replica's engine outside Ray, asked once: python -m tests.one_engine

Takes {"model", "engine_args", "prompts", "max_tokens"} as JSON on stdin, and "folders" where
models lie elsewhere. Writes one line of JSON with the greedy answers' token ids. It also has the
titles of the engine's processes, by their ids, and how many such engines its node computes at
once. Where "freeze" has one of these titles, that process is then stopped and asked the same
again: this ends with what the engine's witness made of that.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
import psutil

from deployments.engine.vllm.adapter import VllmEngine
from deployments.engine.watchdog.hang import EngineHealth
from deployments.engine.watchdog.witness import Witness
from tests.served import at_a_url, stdout_for_the_test


async def answer(asked: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    witness = Witness(ends_hung=True)
    engine = await VllmEngine.start(
        asked["model"],
        "model",
        asked["engine_args"],
        folders=asked.get("folders"),
        heartbeat=witness.path,
    )
    body = {
        "model": "model",
        "prompt": asked["prompts"],
        "max_tokens": asked["max_tokens"],
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    try:
        async with at_a_url(engine, engine.app) as url, aiohttp.ClientSession() as http:
            async with http.post(f"{url}/v1/completions", json=body) as r:
                said = await r.json()
                assert r.status == 200, said
            children = psutil.Process().children(recursive=True)
            titles = {child.pid: child.cmdline()[0] for child in children if child.cmdline()}
            token_ids = [choice["token_ids"] for choice in said["choices"]]
            shares = engine.engines_at_once
            tell({"token_ids": token_ids, "processes": titles, "engines_at_once": shares})
            for pid, title in titles.items():
                if title == asked.get("freeze"):
                    os.kill(pid, signal.SIGSTOP)
                    asking = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
                    while witness.verdict[0] is not EngineHealth.HUNG and not asking.done():
                        witness.beat()
                        await asyncio.sleep(0.05)
                    os._exit(witness.verdict[0])
    finally:
        witness.stop()


if __name__ == "__main__":
    answers = stdout_for_the_test()

    def tell(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    asyncio.run(answer(json.load(sys.stdin), tell))
