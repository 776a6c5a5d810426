"""Prompts for a fleet, and what its answers report of how they were routed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import aiohttp

WORDS = """
river stone market garden winter letter copper window harbour journey silver forest
teacher engine morning village candle bridge thunder paper mountain kitchen sailor
""".split()  # noqa: SIM905  # a list of strings would be a page
# The embedded model's tokenizer takes about one token a word here.
SEGMENT_TOKENS = 128


def text(seed: object, words: int) -> str:
    rng = random.Random(str(seed))
    return " ".join(rng.choice(WORDS) for _ in range(words))


@dataclass(frozen=True)
class Routed:
    """One answer: tokens are the prompt's, times are milliseconds."""

    status: int
    replica: str
    policy: str
    predicted_cached: int
    cached: int
    prompt_tokens: int
    request_id: str
    index_ms: float
    body: dict[str, Any]


async def ask(
    http: aiohttp.ClientSession,
    prompt: str,
    model: str,
    max_tokens: int = 1,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Routed:
    """One chat without a system prompt of the template's own making."""
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": prompt},
            {"role": "user", "content": "Go on."},
        ],
        "max_tokens": max_tokens,
        "temperature": 0,
        **fields,
    }
    async with http.post("/v1/chat/completions", json=body, headers=headers) as answer:
        said: dict[str, Any] = await answer.json()
        told = answer.headers
        return Routed(
            status=answer.status,
            replica=told.get("x-antefix-replica", ""),
            policy=told.get("x-antefix-policy", ""),
            predicted_cached=int(told.get("x-antefix-cached-tokens-predicted", 0)),
            cached=int(told.get("x-antefix-cached-tokens", 0)),
            prompt_tokens=int(told.get("x-antefix-prompt-tokens", 0)),
            request_id=told.get("x-request-id", ""),
            index_ms=float(told.get("x-antefix-index-ms", 0)),
            body=said,
        )


def hit_ratio(answers: list[Routed]) -> float:
    """Share of the reusable prompt tokens that engines found cached."""
    reusable = sum((a.prompt_tokens - 1) // SEGMENT_TOKENS * SEGMENT_TOKENS for a in answers)
    return sum(a.cached for a in answers) / max(1, reusable)
