"""Two engines that both answer, and two of which one only computes prompts for the other."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from benchmarks.harness.load.conversation_player import Answer
from benchmarks.harness.results import report, rules
from benchmarks.tiers.tiered_fleet import TieredFleet, mean_ttft
from benchmarks.tiers.traffic import WARM_UP, Mix, Pace, in_order

# One pool with two replicas; two pools, of which one always computes the prompts, or if the
# predicted TTFT is then lower. The last is played twice.
TOGETHER, ALWAYS, CHOICE, CHOICE_AGAIN = "together", "always", "choice", "choice again"
ENGINES = 2

# Mean seconds of each fleet, to the first token and from it to the last, by load, fleet and seed.
Times = tuple[float, float]


async def prefilling(
    http: aiohttp.ClientSession,
    fleets: Mapping[str, TieredFleet],
    settings: Mapping[str, Any],
    pace: Pace,
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Return the figures of all loads. `fleets`: TOGETHER, ALWAYS and CHOICE."""
    mix = Mix({**settings, "cold_share": 1.0, "hot_share": 0.0})
    of_runs = {**fleets, CHOICE_AGAIN: fleets[CHOICE]}
    for name, fleet in fleets.items():
        warm_up = in_order(mix.requests(0, f"warm up {name}", pace.words_per_s))
        await fleet.play(http, warm_up[:WARM_UP])
    points: dict[str, dict[str, list[Times]]] = {}
    for load in settings["prefill_loads"]:
        rate = ENGINES * load * pace.words_per_s
        point = points.setdefault(str(load), {name: [] for name in of_runs})
        for seed in seeds:
            for name in random.Random(f"prefilling {load} {seed}").sample(list(of_runs), 4):
                run = f"{load} {seed} {name}"
                answers = await of_runs[name].play(http, mix.requests(seed, run, rate))
                point[name].append((round(mean_ttft(answers), 4), round(_decode_s(answers), 4)))
        print(f"prefilling, load {load}: {point}", file=sys.stderr)
    elsewhere = await fleets[CHOICE].taken(http, "prefill")
    return {"points": points, "prefilled": round(elsewhere["requests"])}


def _decode_s(answers: Sequence[Answer]) -> float:
    """Return the mean seconds from the first token to the last."""
    return statistics.fmean(answer.ended - answer.first_byte for answer in answers)


def prefilling_goals(rule: rules.Rule, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goal of the choice. `figures`: as `prefilling` returns them."""
    excess: list[float] = []
    by_load: dict[str, dict[str, float]] = {}
    for load, of in figures["points"].items():
        pairs = zip(of[CHOICE], of[CHOICE_AGAIN], strict=True)
        noise = max(abs(again[0] / choice[0] - 1.0) for choice, again in pairs)
        ratio = _ratio(of[CHOICE], of[ALWAYS], 0)
        excess.append(ratio / (1.0 + noise))
        by_load[load] = {"choice_of_always": ratio, "noise": round(noise, 4)}
        for name in (ALWAYS, CHOICE):
            by_load[load] |= {
                f"{name}_of_together_ttft": _ratio(of[name], of[TOGETHER], 0),
                f"{name}_of_together_decode": _ratio(of[name], of[TOGETHER], 1),
            }
    goal = report.goal(max(excess), **rule.bounds["prefilling_ttft"])
    return {"prefilling_ttft": {**goal, "by_load": by_load}}


def _ratio(one: Sequence[Times], other: Sequence[Times], index: int) -> float:
    """Return the median ratio over the seeds."""
    pairs = zip(one, other, strict=True)
    return round(statistics.median(a[index] / b[index] for a, b in pairs), 4)
