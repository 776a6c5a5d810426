"""One replica's engine outside Ray that speculates: python -m tests.speculating_engine

Takes {"model", "engine_args", "prompts", "max_tokens", "until", "rounds"} as JSON on stdin. Asks
for the greedy answers to all prompts, one after another, round after round: until speculation was
off for a whole round ("off"), or its gain is known ("known"), and at most `rounds` times. Then the
first answer is cut at several places and resumed. Writes one line of JSON: the token ids of each
round and of each cut, how many arrived at once, and the last known facts of the speculation.

The engine counts layers in place of seconds (`tests.counted_schedulers`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import msgspec

from deployments.engine.vllm.adapter import VllmEngine
from deployments.engine.vllm.watch import measured_speculation as speculation
from deployments.engine.vllm.watch.measured_speculation import measure
from deployments.wire.headers import RESUME_FIELD
from tests import counted_schedulers as counted
from tests.deployments.engine.vllm import cut_answers
from tests.deployments.engine.vllm.cut_answers import Answer
from tests.served import at_a_url, stdout_for_the_test
from weights.speculation.speculation_rule import WhenSlower


def measure_layers(config: Any, when_slower: WhenSlower, report: Path) -> None:
    measure(config, when_slower, report)
    scheduler = config.scheduler_config.scheduler_cls
    config.scheduler_config.scheduler_cls = f"{counted.__name__}.{scheduler.rpartition('.')[2]}"


async def rounds(asked: dict[str, Any]) -> dict[str, Any]:
    with patch.object(speculation, "measure", measure_layers):
        engine = await VllmEngine.start(asked["model"], "model", asked["engine_args"], "stop")
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

    known, is_over = None, False
    async with at_a_url(engine) as url, aiohttp.ClientSession(url) as http:
        while not is_over and len(answers) < asked["rounds"]:
            was_off = known is not None and not known.on
            answers.append([await ask(http, prompt) for prompt in asked["prompts"]])
            known = engine.speculation()
            gain = known.speedup if known is not None else None
            is_over = was_off if asked["until"] == "off" else gain is not None
        stream = greedy | {"prompt": asked["prompts"][0], "stream": True}
        whole = await cut_answers.ask(http, "/v1/completions", stream)
        went_on = []
        for cut in cut_answers.cut_positions(whole):
            known_so_far = {RESUME_FIELD: cut_answers.resume_state(whole, cut)}
            rest = await cut_answers.ask(http, "/v1/completions", stream | known_so_far)
            went_on.append(Answer(whole.came[:cut] + rest.came).token_ids[0])
    return {
        "answers": answers,
        "went_on": went_on,
        "at_once": max(len(ids) for _, ids in whole.chunks),
        "known": msgspec.to_builtins(known),
    }


if __name__ == "__main__":
    written = stdout_for_the_test()
    print(json.dumps(asyncio.run(rounds(json.load(sys.stdin)))), file=written, flush=True)
