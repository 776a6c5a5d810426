"""A document that suddenly many requests ask about, with and without pulls."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from benchmarks.harness.load.conversation_player import Answer
from benchmarks.harness.results import report, rules
from benchmarks.tiers.pulling import ALONE, ALONE_AGAIN, PEERS
from benchmarks.tiers.tiered_fleet import TieredFleet, mean_ttft
from benchmarks.tiers.traffic import HotDocument

DTYPE = "float32"
WARM_UP_DOCUMENTS = 3


async def rate_of_one(
    http: aiohttp.ClientSession, fleet: TieredFleet, settings: Mapping[str, Any]
) -> float:
    """Return the requests per second that the only replica of a fleet answers when all ask about
    one document that it has."""
    document = HotDocument("calibrating", settings)
    rates = []
    for number in range(WARM_UP_DOCUMENTS):
        await fleet.play(http, [document.first()])
        answers = await fleet.play(http, document.requests(f"{number}", rate=None))
        began, ended = min(one.due for one in answers), max(one.ended for one in answers)
        rates.append(len(answers) / (ended - began))
    # the first ones are slower
    return rates[-1]


async def spreading(
    http: aiohttp.ClientSession,
    fleets: Mapping[str, TieredFleet],
    settings: Mapping[str, Any],
    rate_of_one: float,
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Return the figures of all runs. `fleets`: PEERS and ALONE, which is played twice."""
    of_runs = {ALONE: fleets[ALONE], ALONE_AGAIN: fleets[ALONE], PEERS: fleets[PEERS]}
    rate = settings["hot_load"] * rate_of_one
    for name, fleet in fleets.items():
        for number in range(WARM_UP_DOCUMENTS):
            await _ask_about(http, fleet, HotDocument(f"{name} {number}", settings), "", rate)
    found: dict[str, Any] = {"rate_of_one": round(rate_of_one, 2), "seeds": []}
    for seed in seeds:
        answers: dict[str, list[Answer]] = {name: [] for name in of_runs}
        pulled: list[tuple[float, float]] = []
        for number in range(settings["hot_documents"]):
            for name in random.Random(f"spreading {seed} {number}").sample(list(of_runs), 3):
                document = HotDocument(f"{name} {seed} {number}", settings)
                asked = f"{seed} {number}"
                came = await _ask_about(http, of_runs[name], document, asked, rate)
                answers[name] += came
                if name == PEERS:
                    pulled += await _pulled(http, fleets[PEERS], came)
        means = {name: round(mean_ttft(of), 4) for name, of in answers.items()}
        found["seeds"].append({**means, "pulled": pulled})
        print(f"spreading, seed {seed}: {found['seeds'][-1]}", file=sys.stderr)
    return found


async def _ask_about(
    http: aiohttp.ClientSession,
    fleet: TieredFleet,
    document: HotDocument,
    name: str,
    rate: float,
) -> list[Answer]:
    """Let one replica compute a document, and then ask about it. Return the answers after that."""
    await fleet.play(http, [document.first()])
    return await fleet.play(http, document.requests(name, rate))


async def _pulled(
    http: aiohttp.ClientSession, fleet: TieredFleet, answers: Sequence[Answer]
) -> list[tuple[float, float]]:
    """Return the predicted and the measured TTFT of requests that pulled. An explanation is kept
    for two minutes."""
    return [
        (round(answer.predicted_ttft_s, 4), round(answer.engine_ttft_s, 4))
        for answer in answers
        if await fleet.way(http, answer) == "peer"
        and answer.predicted_ttft_s
        and answer.engine_ttft_s
    ]


def spreading_goals(rule: rules.Rule, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goals of hot documents. `figures`: as `spreading` returns them.

    Without a pulled request, there is no error to judge, and pulls did not pay.
    """
    seeds = figures["seeds"]
    noise = max(abs(seed[ALONE_AGAIN] / seed[ALONE] - 1.0) for seed in seeds)
    ratio = statistics.median(seed[PEERS] / seed[ALONE] for seed in seeds)
    pulls = [len(seed["pulled"]) for seed in seeds]
    goal = report.goal(ratio * (1.0 + noise), **rule.bounds["spreading_ttft"])
    more = {"ratio": round(ratio, 4), "noise": round(noise, 4), "pulled": sum(pulls)}
    goals = {"spreading_ttft": {**goal, **more}}
    errors = [
        statistics.fmean(abs(told - took) / took for told, took in seed["pulled"])
        for seed in seeds
        if seed["pulled"]
    ]
    if errors:
        goals["prediction_peer"] = rule.judged("prediction_peer", errors)
    return goals
