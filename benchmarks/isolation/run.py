"""Attack a tenant's prompts by timing: make bench-isolation

An attacker with a separate key asks a real engine, through the public API, for prompts of which the
victim has sent one half. Each answer has a time to the first byte and headers. An AUC measures how
well each of them separates the halves. `stranger` is such a tenant. `friend` is in the victim's
cache group, as all tenants would be without the salt: the same attack then succeeds.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.fleets.fleet import running_as, with_small_model
from benchmarks.harness.results import report
from benchmarks.harness.results.options import parser_of
from cli.gateway import stream_client
from cli.gateway.stream_client import Endpoint

FLEET = Path(__file__).with_name("fleet.yaml")
LAYERS = 2
# Timed probes of the stranger.
PROBES = 10_000
# The friend's share of the probes: it needs fewer.
FRIENDS_SHARE = 0.2
WARMUP = 20
# A KV block of 128 tokens that can be reused, and a few more.
PROMPT_TOKENS = 144
TOKEN_IDS = range(1000, 40_000)
PATH = "/v1/completions"
SALTED_WITHIN = 0.02
UNSALTED_AT_LEAST = 0.95
# Each is the larger, the likelier the prompt was seen.
SIGNS = ("time", "cached_tokens", "cached_tokens_predicted", "predicted_ttft")


@dataclass(frozen=True)
class Probe:
    """`attacker` asked for a prompt that the victim had `seen` before, or not."""

    attacker: str
    seen: bool
    signs: Mapping[str, float]


async def ask(
    http: aiohttp.ClientSession, endpoint: Endpoint, prompt: list[int]
) -> dict[str, float]:
    """The SIGNS of one answer."""
    body = {"model": "small", "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    began = time.perf_counter()
    async with http.post(endpoint.url + PATH, json=body, headers=endpoint.headers) as answer:
        answer.raise_for_status()
        await answer.content.readany()
        took_s = time.perf_counter() - began
        await answer.read()
        told = answer.headers
    return {
        "time": -took_s,
        "cached_tokens": float(told["x-antefix-cached-tokens"]),
        # absent before a replica has published its load
        "cached_tokens_predicted": float(told.get("x-antefix-cached-tokens-predicted", 0)),
        "predicted_ttft": -float(told.get("x-antefix-predicted-ttft-ms", 0)),
    }


async def attack(url: str, keys: Mapping[str, str], probes: int) -> list[Probe]:
    """In random order, so that seen and unseen prompts differ by the cache only."""
    chance = random.Random(0)
    who = {
        name: Endpoint(name, url, {"authorization": f"Bearer {key}"}) for name, key in keys.items()
    }
    found: list[Probe] = []
    pairs = WARMUP + probes // 2
    async with stream_client.session() as http:
        for pair in range(pairs):
            prompts = {seen: chance.choices(TOKEN_IDS, k=PROMPT_TOKENS) for seen in (True, False)}
            await ask(http, who["victim"], prompts[True])
            attackers = ["stranger"]
            if chance.random() < FRIENDS_SHARE or pair < WARMUP:
                attackers.append("friend")
            asked = [(attacker, seen) for attacker in attackers for seen in (True, False)]
            for attacker, seen in chance.sample(asked, len(asked)):
                signs = await ask(http, who[attacker], prompts[seen])
                if pair >= WARMUP:
                    found.append(Probe(attacker, seen, signs))
            if pair % 500 == 0:
                print(f"{pair} of {pairs} pairs of prompts", flush=True)
    return found


def auc(of_these: Sequence[float], of_others: Sequence[float]) -> float:
    """The area under the ROC curve: how often a figure of these is above one of the others.

    A tie counts half. 1 or 0 separates them, 0.5 does not.
    """
    others = sorted(of_others)
    above = sum(bisect_left(others, one) + bisect_right(others, one) for one in of_these)
    return above / (2 * len(of_these) * len(others))


def aucs(probes: list[Probe]) -> dict[str, dict[str, float]]:
    """Attacker -> sign -> how well it separates seen from unseen prompts."""

    def told(attacker: str, seen: bool, sign: str) -> list[float]:
        return [of.signs[sign] for of in probes if (of.attacker, of.seen) == (attacker, seen)]

    return {
        attacker: {
            sign: auc(told(attacker, True, sign), told(attacker, False, sign)) for sign in SIGNS
        }
        for attacker in sorted({probe.attacker for probe in probes})
    }


def _within(figure: float) -> dict[str, Any]:
    """A goal: close to 0.5, which separates nothing."""
    return {
        "figure": round(figure, 4),
        "at_least": 0.5 - SALTED_WITHIN,
        "at_most": 0.5 + SALTED_WITHIN,
        "met": abs(figure - 0.5) <= SALTED_WITHIN,
    }


def main() -> None:
    parser_of("isolation.run", __doc__).parse_args()
    keys = {name: secrets.token_hex(24) for name in ("victim", "friend", "stranger")}
    with running_as(with_small_model(FLEET, LAYERS), keys) as fleet:
        probes = asyncio.run(attack(fleet.gateway.url, keys, PROBES))
    found = aucs(probes)
    # the sign that is furthest from chance, in either direction
    best = {
        attacker: max(signs.values(), key=lambda figure: abs(figure - 0.5))
        for attacker, signs in found.items()
    }
    figures = {
        "probes": {name: sum(probe.attacker == name for probe in probes) for name in found},
        "auc": {
            attacker: {sign: round(figure, 4) for sign, figure in signs.items()}
            for attacker, signs in found.items()
        },
    }
    goals = {
        "best_auc_with_the_salt": _within(best["stranger"]),
        "best_auc_without": report.goal(best["friend"], at_least=UNSALTED_AT_LEAST),
    }
    report.finish("isolation", figures, goals, seeds=[0])


if __name__ == "__main__":
    main()
