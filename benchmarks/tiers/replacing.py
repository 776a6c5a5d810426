"""Fleets of which a replica is replaced, with and without pulls: how much of the prompts is cached
afterwards."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from benchmarks.harness.load.conversation_player import Answer
from benchmarks.harness.results import rules
from benchmarks.tiers.pulling import ALONE, PEERS
from benchmarks.tiers.tiered_fleet import TieredFleet
from benchmarks.tiers.traffic import Documents


async def replacing(
    http: aiohttp.ClientSession,
    fleets: Mapping[str, TieredFleet],
    settings: Mapping[str, Any],
    seeds: Sequence[int],
) -> dict[str, list[dict[str, float]]]:
    """Return the cached shares of each fleet and seed. `fleets`: ALONE and PEERS."""
    found: dict[str, list[dict[str, float]]] = {ALONE: [], PEERS: []}

    async def replaced(name: str, seed: int) -> None:
        shares = await _replaced(http, fleets[name], Documents(seed, settings), settings)
        found[name].append(shares)
        print(f"replacing, seed {seed}, {name}: {shares}", file=sys.stderr)

    for seed in seeds:
        # the rate is low, and no times are compared
        await asyncio.gather(*(replaced(name, seed) for name in found))
    return found


async def _replaced(
    http: aiohttp.ClientSession,
    fleet: TieredFleet,
    documents: Documents,
    settings: Mapping[str, Any],
) -> dict[str, float]:
    """Return the cached share before and after a replacement, and their ratio."""
    for _ in range(settings["replaced_warm_ups"]):
        for asked in documents.each():
            await fleet.play(http, [asked])
    before = await fleet.play(http, documents.questions(settings["replaced_before_s"]))
    await asyncio.to_thread(fleet.start_replica)
    after, _ = await asyncio.gather(
        fleet.play(http, documents.questions(settings["replaced_after_s"])),
        asyncio.to_thread(fleet.stop_oldest),
    )
    steady, replaced = _cached_share(before), _cached_share(after)
    return {
        "before": round(steady, 4),
        "after": round(replaced, 4),
        "of_steady": round(replaced / steady, 4),
    }


def _cached_share(answers: Sequence[Answer]) -> float:
    cached = sum(answer.cached_tokens for answer in answers)
    return cached / sum(answer.prompt_tokens for answer in answers)


def replacing_goals(rule: rules.Rule, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goal of replacements. `figures`: as `replacing` returns them."""
    shares = {name: [seed["of_steady"] for seed in of] for name, of in figures.items()}
    goal = rule.judged("replaced_cached_share", shares[PEERS])
    return {"replaced_cached_share": {**goal, "without_pulls": shares[ALONE]}}
