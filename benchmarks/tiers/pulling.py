"""Two replicas that pull prefixes from each other, and two that do not."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from benchmarks.harness.results import report, rules
from benchmarks.tiers.tiered_fleet import TieredFleet, mean_ttft
from benchmarks.tiers.traffic import WARM_UP, Mix, Pace, in_order

ALONE, ALONE_AGAIN, PEERS = "alone", "alone again", "peers"
REPLICAS = 2

# The mean TTFT in seconds of each fleet, by load, fleet and seed.
PullPoints = dict[str, dict[str, list[float]]]


async def pulling(
    http: aiohttp.ClientSession,
    fleets: Mapping[str, TieredFleet],
    settings: Mapping[str, Any],
    pace: Pace,
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Return the figures of all loads. `fleets`: PEERS and ALONE, which is played twice."""
    mix, points = Mix(settings), PullPoints()
    of_runs = {ALONE: fleets[ALONE], ALONE_AGAIN: fleets[ALONE], PEERS: fleets[PEERS]}
    for fleet in fleets.values():
        for asked in mix.documents():
            await fleet.play(http, [asked])
        await fleet.play(http, in_order(mix.requests(0, "warm up", pace.words_per_s))[:WARM_UP])
    before = await fleets[PEERS].taken(http, "peer")
    for load in settings["pull_loads"]:
        rate = REPLICAS * load * pace.words_per_s
        point = points.setdefault(str(load), {name: [] for name in of_runs})
        for seed in seeds:
            for name in random.Random(f"pulling {load} {seed}").sample(list(of_runs), 3):
                answers = await of_runs[name].play(http, mix.requests(seed, f"{load} {name}", rate))
                point[name].append(round(mean_ttft(answers), 4))
        print(f"pulling, load {load}: {point}", file=sys.stderr)
    after = await fleets[PEERS].taken(http, "peer")
    pulls = {name: after[name] - before[name] for name in after}
    figures: dict[str, Any] = {"points": points, "pulled": round(pulls["requests"])}
    if pulls["measured"]:
        figures["predicted_of_measured"] = round(pulls["predicted"] / pulls["measured"], 4)
    return figures


def pulling_goals(rule: rules.Rule, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goal of pulls. `figures`: as `pulling` returns them."""
    ratios: dict[str, float] = {}
    excess: list[float] = []
    for load, of in figures["points"].items():
        pairs = zip(of[ALONE], of[ALONE_AGAIN], strict=True)
        noise = max(abs(again / alone - 1.0) for alone, again in pairs)
        pulled = zip(of[PEERS], of[ALONE], strict=True)
        ratios[load] = statistics.median(peers / alone for peers, alone in pulled)
        excess.append(ratios[load] / (1.0 + noise))
    goal = report.goal(max(excess), **rule.bounds["pulling_ttft"])
    by_load = {load: round(ratio, 4) for load, ratio in ratios.items()}
    return {"pulling_ttft": {**goal, "by_load": by_load}}
