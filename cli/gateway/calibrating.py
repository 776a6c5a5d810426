"""Measure one engine on its own server: the time of prompts, and of steps with many streams.

Prompts are token ids that no other request has, so none is cached. The prefill rate is the slope of
the times of prompts of several lengths. The time of a step is a line over the number of concurrent
streams. Medians are used, because disturbed steps are not representative.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import aiohttp

from cli.gateway.stream_client import Endpoint
from common.machine import machine
from deployments.wire.engine_facts import FACTS_PATH, EngineFacts
from simulator.engine_profile import EngineProfile
from simulator.engines import Hardware

PROMPTS, PROMPT_ROUNDS = 4, 3
STREAMS, STREAM_TOKENS = (1, 2, 4, 8, 16), 24
SHORT_TOKENS = 16
# Above the special tokens of any tokenizer, and within every vocabulary.
TOKEN_IDS = range(1000, 20000)
LONGEST_PROMPT = 2048
# A measured time of 0 would mean that an engine takes any number of requests.
LEAST_S = 1e-6


async def calibrated(http: aiohttp.ClientSession, engine: Endpoint, model: str) -> EngineProfile:
    """Return the profile of an idle engine. Raises aiohttp.ClientError."""
    async with http.get(engine.url + FACTS_PATH, headers=engine.headers) as answer:
        answer.raise_for_status()
        facts = EngineFacts.from_json(await answer.read())
    measuring = _Measuring(http, engine, model)
    await measuring.prompt(SHORT_TOKENS)  # the first request of all takes longer
    longest = min(LONGEST_PROMPT, facts.max_model_len - STREAM_TOKENS)
    lengths = [longest * (i + 1) // PROMPTS for i in range(PROMPTS)]
    took = {
        length: statistics.median([await measuring.prompt(length) for _ in range(PROMPT_ROUNDS)])
        for length in lengths
    }
    steps = {
        streams: await measuring.step(streams) for streams in STREAMS if streams <= facts.sequences
    }
    _, per_token = line(list(took.items()))
    step_s, sequence_s = line(list(steps.items()))
    return EngineProfile(
        hardware=Hardware(
            prefill_rate=1.0 / max(per_token, LEAST_S),
            step_s=max(step_s, LEAST_S),
            sequence_s=max(sequence_s, 0.0),
            step_tokens=facts.step_tokens,
            sequences=facts.sequences,
            block_tokens=facts.block_tokens,
            blocks=facts.kv_capacity_tokens // facts.block_tokens,
        ),
        startup_s=facts.startup_s,
        source={
            "kind": "measured",
            "engine": model,
            "prompt_s": {str(length): round(seconds, 4) for length, seconds in took.items()},
            "step_s": {str(streams): round(seconds, 5) for streams, seconds in steps.items()},
            **machine(),
        },
    )


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of the best line, neither negative. One point: slope 0."""
    if len(points) < 2:
        return points[0][1], 0.0
    slope, begin = statistics.linear_regression(*zip(*points, strict=True))
    if slope < 0:
        return statistics.fmean(y for _, y in points), 0.0
    if begin < 0:
        fit = statistics.linear_regression(*zip(*points, strict=True), proportional=True)
        return 0.0, fit.slope
    return begin, slope


class _Measuring:
    def __init__(self, http: aiohttp.ClientSession, engine: Endpoint, model: str) -> None:
        self._http = http
        self._engine = engine
        self._model = model
        self._rng = random.Random(time.time_ns())

    async def prompt(self, tokens: int) -> float:
        """Return the seconds to the first token of one prompt."""
        began = time.perf_counter()
        times = await self._stream(tokens, 1)
        return times[0] - began

    async def step(self, streams: int) -> float:
        """Return the seconds from token to token while this many streams are decoded."""
        all_times = await asyncio.gather(
            *(self._stream(SHORT_TOKENS, STREAM_TOKENS) for _ in range(streams))
        )
        begin, end = max(times[0] for times in all_times), min(times[-1] for times in all_times)
        between = [
            after - before
            for times in all_times
            for before, after in pairwise(times)
            if begin <= before and after <= end
        ]
        return statistics.median(between)

    async def _stream(self, prompt_tokens: int, answer_tokens: int) -> list[float]:
        """Return the arrival time of each token, by time.perf_counter."""
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": self._rng.choices(TOKEN_IDS, k=prompt_tokens),
            "max_tokens": answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        url = self._engine.url + "/v1/completions"
        async with self._http.post(url, json=body, headers=self._engine.headers) as answer:
            answer.raise_for_status()
            return [
                time.perf_counter()
                async for event in answer.content
                if event.startswith(b"data: {")
            ]
