"""Evicted prefixes that are loaded, and those that are computed: make bench-tiers

Conversations that return after their prefix was evicted, with and without tiers; prompts that never
find anything in a tier; the predicted TTFT of each way to get a prefix. Then loads are throttled,
and Antefix, which decides for each request, is compared with fixed rules. `--parts` selects some of
this. `pulling`: replicas that pull prefixes from each other, and replicas that do not. `spreading`:
the same with one document that suddenly many requests ask about. `prefilling`: one engine computes
prompts for another one, compared with two engines that both answer. `replacing`:
how much of the prompts is cached after a replica was replaced. `identical`: answers from all tiers
with faults, compared with computed ones. `--answers`: their number.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.load.conversation_player import Answer
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.options import add_seeds, parser_of
from benchmarks.tiers import tiered_fleet
from benchmarks.tiers.identical import identical, identical_goals
from benchmarks.tiers.prefilling import (
    ALWAYS,
    CHOICE,
    TOGETHER,
    prefilling,
    prefilling_goals,
)
from benchmarks.tiers.pulling import ALONE, PEERS, REPLICAS, pulling, pulling_goals
from benchmarks.tiers.replacing import replacing, replacing_goals
from benchmarks.tiers.ruled_gateway import Rule
from benchmarks.tiers.spreading import DTYPE, rate_of_one, spreading, spreading_goals
from benchmarks.tiers.tiered_fleet import TieredFleet, kv_bytes_per_token, mean_ttft
from benchmarks.tiers.traffic import WARM_UP, Mix, Pace, ReturningChats, alone, in_order, words
from cli.gateway import stream_client
from loadgen.workloads import Message

RULE = rules.of("tiers")
SETTINGS = RULE.settings
TIMED_PARTS = (
    *("returning", "cost", "ranking", "pulling", "replacing"),
    *("spreading", "prefilling"),
)
IDENTICAL = "identical"
OFF, OFF_AGAIN, HOST, DISK = "off", "off again", "host", "disk"
COMPUTED, IN_PLACE = "computed", "in_place"
# How a fleet with tiers got a prefix that its device had evicted.
LOADED = {HOST: "host", DISK: "disk"}
# The host memory of the fleet with files: at least one prompt has to fit.
DISK_FLEETS_HOST_TOKENS = 4096
DISK_BYTES = 4 << 30
CALIBRATING = 8
ANTEFIX, ANTEFIX_AGAIN = "antefix", "antefix again"

Ways = dict[str, list[Answer]]


@dataclass
class Found:
    """What was measured, by seed. `points`: the mean TTFT in seconds of each rule, by load time,
    load and seed."""

    returning: list[dict[str, Any]] = field(default_factory=list)
    cost: list[dict[str, float]] = field(default_factory=list)
    errors: list[dict[str, float]] = field(default_factory=list)
    points: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    pulling: dict[str, Any] = field(default_factory=dict)
    spreading: dict[str, Any] = field(default_factory=dict)
    prefilling: dict[str, Any] = field(default_factory=dict)
    replacing: dict[str, Any] = field(default_factory=dict)
    failed: int = 0


async def returns(
    http: aiohttp.ClientSession, fleet: TieredFleet, seed: str
) -> tuple[Ways, list[tuple[tuple[int, int], Answer]]]:
    """Play conversations that return when all others have had their turn.

    Returns the answers to first turns and to turns that follow at once, and the returns, each with
    its turn and its conversation.
    """
    chats, ways = ReturningChats(seed, SETTINGS), Ways()
    returned: list[tuple[tuple[int, int], Answer]] = []
    for first in chats.first():
        ways.setdefault(COMPUTED, []).extend(await fleet.play(http, [first]))
    for turn in range(SETTINGS["returns"]):
        for number in range(SETTINGS["conversations"]):
            answers = await fleet.play(http, [chats.next(number)])
            returned.extend(((turn, number), answer) for answer in answers)
            ways.setdefault(IN_PLACE, []).extend(await fleet.play(http, [chats.next(number)]))
    return ways, returned


async def returning(
    http: aiohttp.ClientSession, fleets: Mapping[str, TieredFleet], seed: int, found: Found
) -> None:
    """Add the figures of a seed."""
    turns: dict[str, dict[tuple[int, int], Answer]] = {}
    ways: Ways = {}
    for name in random.Random(seed).sample([OFF, HOST, DISK], 3):
        played, returned = await returns(http, fleets[name], f"returning {seed}")
        turns[name] = dict(returned)
        for way, answers in played.items():
            ways.setdefault(way, []).extend(answers)
    evicted = [turn for turn, answer in turns[OFF].items() if answer.cached_tokens == 0]
    ways[COMPUTED] += [turns[OFF][turn] for turn in evicted]
    for name, way in LOADED.items():
        ways[way] = [turns[name][turn] for turn in evicted if turn in turns[name]]
    ways[COMPUTED] = [answer for answer in ways[COMPUTED] if answer.cached_tokens == 0]
    ways[IN_PLACE] = [answer for answer in ways[IN_PLACE] if answer.cached_tokens]
    means = {
        name: mean_ttft([played[turn] for turn in evicted if turn in played])
        for name, played in turns.items()
    }
    figures = {f"mean_ttft_s_{name}": round(mean, 4) for name, mean in means.items()}
    figures |= {f"{name}_of_off": round(means[name] / means[OFF], 4) for name in LOADED}
    tokens = [
        (turns[HOST][turn].cached_tokens, turns[HOST][turn].prompt_tokens) for turn in evicted
    ]
    figures |= {
        "evicted": len(evicted),
        "returns": len(turns[OFF]),
        "loaded_share_host": round(sum(a for a, _ in tokens) / sum(b for _, b in tokens), 4),
    }
    found.returning.append(figures)
    found.errors.append({way: round(mean_error(answers), 4) for way, answers in ways.items()})
    print(f"returning, seed {seed}: {figures}, errors {found.errors[-1]}", file=sys.stderr)


def mean_error(answers: Sequence[Answer]) -> float:
    """Return the mean absolute error of the predicted TTFT, relative to the measured one."""
    return statistics.fmean(
        abs(answer.predicted_ttft_s - answer.engine_ttft_s) / answer.engine_ttft_s
        for answer in answers
        if answer.predicted_ttft_s is not None and answer.engine_ttft_s
    )


async def cost(
    http: aiohttp.ClientSession, fleets: Mapping[str, TieredFleet], seed: int, found: Found
) -> None:
    """Add a seed's mean seconds of requests that find nothing in any cache."""
    rng = random.Random(f"cost {seed}")
    taken: dict[str, list[float]] = {name: [] for name in fleets}
    for number in range(SETTINGS["fresh_prompts"]):
        text = f"{seed} {number}: {words(rng, rng.randint(*SETTINGS['prompt_words']))}"
        for name in rng.sample(list(fleets), len(fleets)):
            asked = alone("fresh", [Message("user", text)])
            for answer in await fleets[name].play(http, [asked]):
                taken[name].append(answer.ended - answer.due)
    found.cost.append(
        {name: round(statistics.fmean(seconds), 4) for name, seconds in taken.items()}
    )
    print(f"cost, seed {seed}: {found.cost[-1]}", file=sys.stderr)


async def calibrated(http: aiohttp.ClientSession, fleet: TieredFleet) -> Pace:
    """Return the pace of a fleet, measured on prompts that share nothing."""
    counts = [SETTINGS["prompt_words"][1]] * CALIBRATING
    rng = random.Random("calibrating")
    taken: list[Answer] = []
    for number, count in enumerate(counts):
        asked = alone("calibrating", [Message("user", f"{number}: {words(rng, count)}")])
        taken.extend(await fleet.play(http, [asked]))
    # the first ones are slower
    counted = taken[2:]
    seconds = sum(answer.ttft for answer in counted)
    tokens = sum(answer.prompt_tokens for answer in counted)
    return Pace(tokens / seconds, sum(counts[2:]) / seconds)


async def ranking(
    http: aiohttp.ClientSession,
    fleet: TieredFleet,
    load_times: float,
    pace: Pace,
    seeds: Sequence[int],
    found: Found,
) -> None:
    """Add the figures of all loads and rules with one throttled path."""
    mix = Mix(SETTINGS)
    for asked in mix.documents():
        await fleet.play(http, [asked])
    named: dict[str, Rule] = {ANTEFIX: None, ANTEFIX_AGAIN: None}
    named |= {str(rule): rule for rule in SETTINGS["rules"]}
    await fleet.play(http, in_order(mix.requests(0, "warm up", pace.words_per_s))[:WARM_UP])
    for load in SETTINGS["loads"]:
        point = found.points.setdefault(f"{load_times} {load}", {name: [] for name in named})
        for seed in seeds:
            for name in random.Random(f"{load} {seed}").sample(list(named), len(named)):
                fleet.follow(named[name])
                run = f"{load} {seed} {name}"
                answers = await fleet.play(http, mix.requests(seed, run, load * pace.words_per_s))
                point[name].append(round(mean_ttft(answers), 4))
        print(f"load time {load_times}, load {load}: {point}", file=sys.stderr)
    fleet.follow(None)


@contextlib.contextmanager
def _pairs(
    folder: Path, host: Mapping[str, Any], dtype: str | None = None
) -> Iterator[dict[str, TieredFleet]]:
    """Run two replicas that pull from each other, and two that do not."""
    with contextlib.ExitStack() as stack:
        fleets = {}
        for name, peers in ((ALONE, False), (PEERS, True)):
            tiers = {**host, "peers": peers}
            started = tiered_fleet.running(
                folder / name, SETTINGS, tiers, replicas=REPLICAS, dtype=dtype
            )
            fleets[name] = stack.enter_context(started)
        yield fleets


@contextlib.contextmanager
def _split(folder: Path, host: Mapping[str, Any]) -> Iterator[dict[str, TieredFleet]]:
    """Run two replicas of one pool, and twice one replica of each of two pools."""
    tiers = {**host, "peers": True}
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                tiered_fleet.running(folder / name, SETTINGS, tiers, replicas=of, prefill=prefill)
            )
            for name, of, prefill in (
                (TOGETHER, REPLICAS, None),
                (ALWAYS, 1, {"always": True}),
                (CHOICE, 1, {}),
            )
        }


async def all_measured(
    folder: Path, parts: Sequence[str], seeds: Sequence[int], answers: int
) -> dict[str, Any]:
    """Return the figures of these parts, with this number of answers that are compared."""
    timed = [part for part in parts if part != IDENTICAL]
    figures = await measured(folder, timed, seeds) if timed else {}
    if IDENTICAL in parts:
        figures[IDENTICAL] = await identical(folder, SETTINGS, answers, seeds[0])
    return figures


async def measured(folder: Path, parts: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the figures of TIMED_PARTS."""
    found, token_bytes = Found(), kv_bytes_per_token()
    host = {"host_bytes": SETTINGS["host_tokens"] * token_bytes}
    disk = {"folder": str(folder / "files"), "max_bytes": DISK_BYTES}
    small_host = {"host_bytes": DISK_FLEETS_HOST_TOKENS * token_bytes, "disk": disk}
    tiers: dict[str, Any] = {OFF: None, OFF_AGAIN: None, HOST: host, DISK: small_host}
    figures: dict[str, Any] = {}
    if not {"returning", "cost"} & set(parts):
        tiers = {OFF: None}
    async with stream_client.session() as http:
        with contextlib.ExitStack() as stack:
            fleets = {
                name: stack.enter_context(tiered_fleet.running(folder / name, SETTINGS, of))
                for name, of in tiers.items()
            }
            for fleet in fleets.values():
                await returns(http, fleet, "warm up")
            pace = await calibrated(http, fleets[OFF])
            for seed in seeds:
                if "returning" in parts:
                    await returning(http, fleets, seed, found)
                if "cost" in parts:
                    await cost(http, fleets, seed, found)
            found.failed += sum(fleet.failed for fleet in fleets.values())
        if "ranking" in parts:
            for times in SETTINGS["load_times"]:
                rate = pace.tokens_per_s * token_bytes / times
                of_times = folder / f"throttled-{times}"
                with tiered_fleet.running(of_times, SETTINGS, host, rate) as fleet:
                    await ranking(http, fleet, times, pace, seeds, found)
                    found.failed += fleet.failed
        if {"pulling", "replacing"} & set(parts):
            with _pairs(folder, host) as pairs:
                if "pulling" in parts:
                    found.pulling = await pulling(http, pairs, SETTINGS, pace, seeds)
                if "replacing" in parts:
                    found.replacing = await replacing(http, pairs, SETTINGS, seeds)
                found.failed += sum(pair.failed for pair in pairs.values())
        if "spreading" in parts:
            in_float32 = {"host_bytes": SETTINGS["host_tokens"] * kv_bytes_per_token(DTYPE)}
            with tiered_fleet.running(folder / "one", SETTINGS, None, dtype=DTYPE) as one:
                rate = await rate_of_one(http, one, SETTINGS)
                found.failed += one.failed
            of_hot = folder / "spreading"
            of_hot.mkdir()
            with _pairs(of_hot, in_float32, DTYPE) as pairs:
                found.spreading = await spreading(http, pairs, SETTINGS, rate, seeds)
                found.failed += sum(pair.failed for pair in pairs.values())
        if "prefilling" in parts:
            with _split(folder, host) as split:
                found.prefilling = await prefilling(http, split, SETTINGS, pace, seeds)
                found.failed += sum(fleet.failed for fleet in split.values())
    figures |= {"prefill_tokens_per_s": round(pace.tokens_per_s), "failed": found.failed}
    figures |= {"returning": found.returning, "errors": found.errors, "cost": found.cost}
    figures |= {"points": found.points, "pulling": found.pulling, "replacing": found.replacing}
    return figures | {"spreading": found.spreading, "prefilling": found.prefilling}


def goals_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goals of the measured parts."""
    found = identical_goals(RULE, figures[IDENTICAL]) if IDENTICAL in figures else {}
    if "failed" not in figures:
        return found
    found["failed"] = report.goal(figures["failed"], **RULE.bounds["failed"])
    if figures["returning"]:
        ratios = [seed["host_of_off"] for seed in figures["returning"]]
        found["returning_ttft"] = RULE.judged("returning_ttft", ratios)
        for way in (COMPUTED, IN_PLACE, *LOADED.values()):
            goal = f"prediction_{way}"
            found[goal] = RULE.judged(goal, [seed[way] for seed in figures["errors"]])
    if figures["cost"]:
        found |= _cost_goal(figures["cost"])
    if figures["points"]:
        found |= _ranking_goals(figures["points"])
    if figures["pulling"]:
        found |= pulling_goals(RULE, figures["pulling"])
    if figures["spreading"]:
        found |= spreading_goals(RULE, figures["spreading"])
    if figures["prefilling"]:
        found |= prefilling_goals(RULE, figures["prefilling"])
    if figures["replacing"]:
        found |= replacing_goals(RULE, figures["replacing"])
    return found


def _cost_goal(by_seed: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    noise = max(abs(seed[OFF_AGAIN] / seed[OFF] - 1.0) for seed in by_seed)
    ratio = max(statistics.median(seed[on] / seed[OFF] for seed in by_seed) for on in (HOST, DISK))
    goal = report.goal(max(0.0, ratio - 1.0 - noise), **RULE.bounds["cost_above_noise"])
    return {"cost_above_noise": {**goal, "ratio": round(ratio, 4), "noise": round(noise, 4)}}


def _ranking_goals(points: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    slower: dict[str, float] = {}
    faster: dict[str, float] = {}
    for point, by_rule in points.items():
        ours, again = by_rule[ANTEFIX], by_rule[ANTEFIX_AGAIN]
        others = {name: of for name, of in by_rule.items() if name not in (ANTEFIX, ANTEFIX_AGAIN)}
        best = min(others.values(), key=statistics.median)
        noise = max(abs(b / a - 1.0) for a, b in zip(ours, again, strict=True))
        slower[point] = _ratio(ours, best) / (1.0 + noise)
        for name, of in others.items():
            faster[name] = max(faster.get(name, 0.0), _ratio(of, ours))
    bounds = RULE.bounds
    return {
        "slower_than_best_rule": {
            **report.goal(max(slower.values()), **bounds["slower_than_best_rule"]),
            "by_point": {point: round(ratio, 4) for point, ratio in slower.items()},
        },
        "faster_than_each_rule": {
            **report.goal(min(faster.values()), **bounds["faster_than_each_rule"]),
            "by_rule": {name: round(ratio, 4) for name, ratio in faster.items()},
        },
    }


def _ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the median ratio over the seeds."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def main() -> None:
    parser = parser_of("tiers.run", __doc__)
    add_seeds(parser, RULE)
    parts = [*TIMED_PARTS, IDENTICAL]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="all")
    most = SETTINGS["identical_answers"]
    parser.add_argument("--answers", type=int, default=most, help=str(most))
    options = parser.parse_args()
    with stopped_in_the_end(), tempfile.TemporaryDirectory(prefix="afx-tiers-") as folder:
        measuring = all_measured(Path(folder), options.parts, options.seeds, options.answers)
        figures = asyncio.run(measuring)
    report.finish("tiers", figures, goals_of(figures), seeds=options.seeds)


if __name__ == "__main__":
    main()
