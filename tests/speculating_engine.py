"""One replica's engine outside Ray that speculates: python -m tests.speculating_engine

Takes {"model", "engine_args", "prompts", "max_tokens", "until", "within_s"} as JSON on stdin. Asks
for the greedy answers to all prompts, one after another, round after round: until speculation was
off for a whole round ("off"), or its gain is known ("known"), or the time is up. Then the first
answer is cut at several places and resumed. Writes one line of JSON: the token ids of each round
and of each cut, how many came at once, and the last known facts of the speculation.
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

from deployments.engine.confirming import Confirming
from deployments.engine.vllm.adapter import VllmEngine
from deployments.process.http_server import HttpServer
from deployments.wire.headers import RESUME_FIELD
from router.load import LoadReport
from tests.deployments.engine.vllm import cut_answers
from tests.deployments.engine.vllm.cut_answers import Answer


async def rounds(asked: dict[str, Any]) -> dict[str, Any]:
    engine = await VllmEngine.start(asked["model"], "model", asked["engine_args"], "stop")
    server = HttpServer(Confirming(engine.app, lambda: LoadReport(1, 0, 0, 0)))
    url = await server.start("127.0.0.1")
    answers: list[list[list[int]]] = []
    greedy = {
        "model": "model",
        "max_tokens": asked["max_tokens"],
        "temperature": 0,
        "ignore_eos": True,
    }

    async def ask(http: aiohttp.ClientSession, prompt: str) -> list[int]:
        body = greedy | {"prompt": prompt, "return_token_ids": True}
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
        stream = greedy | {"prompt": asked["prompts"][0], "stream": True}
        whole = await cut_answers.ask(http, "/v1/completions", stream)
        went_on = []
        for cut in cut_answers.cuts(whole):
            known_so_far = {RESUME_FIELD: cut_answers.told(whole, cut)}
            rest = await cut_answers.ask(http, "/v1/completions", stream | known_so_far)
            went_on.append(Answer(whole.came[:cut] + rest.came).token_ids[0])
    await server.drain()
    engine.stop()
    return {
        "answers": answers,
        "went_on": went_on,
        "at_once": max(len(ids) for _, ids in whole.chunks),
        "known": msgspec.to_builtins(known),
    }


if __name__ == "__main__":
    written = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    print(json.dumps(asyncio.run(rounds(json.load(sys.stdin)))), file=written, flush=True)
