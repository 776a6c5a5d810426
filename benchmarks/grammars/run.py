"""Measure what an attacker's grammars cost another tenant: make bench-grammars

A victim asks one real engine to choose between yes and no, one request at a time. In turns it is
alone, alone once more (the A/A control), and under attack: other tenants send new schemas, patterns
and choices that take the engine longest to compile. Each seed has one block of each kind, in random
order, and the engine is idle before each. At the end, the engine's memory is compared with that
before the first attack.

In addition, an attacker asks for answers whose constraints are costly to follow. A stream of the
victim is timed while the engine follows each that it admits (`gaps.py`).
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.grammars import gaps
from benchmarks.grammars.attack import COSTLY, PATH, body, constraints, under_attack
from benchmarks.harness.fleets.fleet import BenchFleet, running_as, with_small_model
from benchmarks.harness.fleets.fleet_state import private_mb, replicas_of
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.options import parser_of
from cli.gateway import stream_client
from cli.gateway.stream_client import Endpoint
from cli.local.home import Home
from common.percentiles import percentile, tail_percent

FLEET = Path(__file__).with_name("fleet.yaml")
RULE = rules.of("grammars")
BLOCK, ATTACKERS = RULE.settings["requests_of_a_block"], RULE.settings["attackers"]
CONNECTIONS, LAYERS = RULE.settings["connections"], RULE.settings["layers"]
MEMORY_AFTER_S, GAP_TOKENS = RULE.settings["memory_after_s"], RULE.settings["gap_tokens"]
ALONE, CONTROL, ATTACKED = KINDS = ("alone", "control", "attacked")
WARM_UP = 20
# By then the first constraint of an attack compiles.
BEGIN_S = 1.0
# An idle engine takes less than this share of a core for a second.
IDLE_SHARE, IDLE_WITHIN_S = 0.15, 40.0


@dataclass
class Victim:
    """`seconds` of each answer by kind, one list per seed."""

    http: aiohttp.ClientSession
    endpoint: Endpoint
    model: str
    seconds: dict[str, list[list[float]]] = field(default_factory=lambda: {k: [] for k in KINDS})
    failed: int = 0

    async def block(self, kind: str | None, requests: int) -> None:
        """`kind` None: does not count."""
        found = [await self._ask() for _ in range(requests)]
        if kind is not None:
            self.seconds[kind].append(found)

    async def _ask(self) -> float:
        asked = body(self.model, {"choice": ["yes", "no"]})
        url, headers = self.endpoint.url + PATH, self.endpoint.headers
        began = time.perf_counter()
        async with self.http.post(url, json=asked, headers=headers) as answer:
            await answer.read()
            self.failed += answer.status != 200
        return time.perf_counter() - began

    def figures(self) -> dict[str, Any]:
        return {kind: _figures(blocks) for kind, blocks in self.seconds.items()}


def _figures(blocks: list[list[float]]) -> dict[str, Any]:
    pooled = [seconds for block in blocks for seconds in block]
    percent = tail_percent(len(pooled))
    return {
        "requests": len(pooled),
        "tail": f"p{percent}",
        "p50_s": round(percentile(pooled, 50), 4),
        "tail_s": round(percentile(pooled, percent), 4),
        "longest_s": round(max(pooled), 4),
        "p50_s_of_each_block": [round(percentile(block, 50), 4) for block in blocks],
        "p90_s_of_each_block": [round(percentile(block, 90), 4) for block in blocks],
    }


class EngineProcesses:
    """The replica's process and its children."""

    def __init__(self, home: Path) -> None:
        state = Home(home).state()
        assert state is not None
        self._run_id = state.run_id

    def memory_mb(self) -> float:
        return sum(map(private_mb, self._alive()))

    async def idle(self) -> None:
        """Wait until they compute next to nothing. Raises TimeoutError."""
        async with asyncio.timeout(IDLE_WITHIN_S):
            before = self._cpu_s()
            while True:
                await asyncio.sleep(1.0)
                now = self._cpu_s()
                if now - before < IDLE_SHARE:
                    return
                before = now

    def _cpu_s(self) -> float:
        times = (process.cpu_times() for process in self._alive())
        return sum(of.user + of.system for of in times)

    def _alive(self) -> list[psutil.Process]:
        replicas = replicas_of(self._run_id, "engine")
        families = ([one, *one.children(recursive=True)] for one in replicas)
        return list({one.pid: one for family in families for one in family}.values())


async def measure(fleet: BenchFleet, keys: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and goals."""
    endpoints = {name: _with_key(fleet.gateway, key) for name, key in keys.items()}
    attackers = [endpoint for name, endpoint in endpoints.items() if name != "victim"]
    engine, statuses = EngineProcesses(fleet.home), Counter[int]()
    sent = constraints()
    async with stream_client.session() as http:
        victim = Victim(http, endpoints["victim"], fleet.model)
        await victim.block(None, WARM_UP)
        await engine.idle()
        before_mb = engine.memory_mb()
        most_mb = before_mb
        for seed in RULE.reported:
            for kind in random.Random(seed).sample(KINDS, len(KINDS)):
                await engine.idle()
                if kind == ATTACKED:
                    async with under_attack(http, attackers, fleet.model, CONNECTIONS, sent) as got:
                        await asyncio.sleep(BEGIN_S)
                        await victim.block(kind, BLOCK)
                        most_mb = max(most_mb, engine.memory_mb())
                    statuses += got
                else:
                    await victim.block(kind, BLOCK)
            print(
                seed, {k: _figures(b[-1:])["p50_s"] for k, b in victim.seconds.items()}, flush=True
            )
        await asyncio.sleep(MEMORY_AFTER_S)
        after_mb = engine.memory_mb()
        stream = gaps.StreamGaps(http, victim.endpoint, attackers[0], fleet.model, GAP_TOKENS)
        found = await stream.beside_each(COSTLY)
    figures = {
        **victim.figures(),
        "control_by_alone": round(_by_alone(victim.figures(), CONTROL), 3),
        "p50_attacked_by_alone": round(_by_alone(victim.figures(), ATTACKED, "p50_s"), 3),
        "attackers_answers": {str(status): count for status, count in sorted(statuses.items())},
        "memory_mb": {
            "before": round(before_mb),
            "most": round(most_mb),
            "a_minute_later": round(after_mb),
        },
        "gaps": gaps.figures_of(found),
    }
    return figures, goals_of(figures, victim.failed, gaps.worst(found))


async def only_gaps(fleet: BenchFleet, keys: dict[str, str]) -> dict[str, Any]:
    """Return the figures of the victim's stream next to costly answers."""
    victim, attacker = (_with_key(fleet.gateway, key) for key in list(keys.values())[:2])
    async with stream_client.session() as http:
        stream = gaps.StreamGaps(http, victim, attacker, fleet.model, GAP_TOKENS)
        return gaps.figures_of(await stream.beside_each(COSTLY))


def goals_of(figures: dict[str, Any], failed: int, worst_gap: float) -> dict[str, Any]:
    memory = figures["memory_mb"]
    return {
        name: RULE.judged(name, [figure])
        for name, figure in (
            ("p99_under_attack_of_that_alone", _by_alone(figures, ATTACKED)),
            ("worst_gap_beside_admitted_of_alone", worst_gap),
            ("memory_a_minute_later_of_before", memory["a_minute_later"] / memory["before"]),
            ("failed", failed),
        )
    }


def _by_alone(figures: dict[str, Any], kind: str, which: str = "tail_s") -> float:
    return float(figures[kind][which] / figures[ALONE][which])


def _with_key(gateway: Endpoint, key: str) -> Endpoint:
    return replace(gateway, headers={"authorization": f"Bearer {key}"})


def main() -> None:
    parser = parser_of("grammars.run", __doc__)
    parser.add_argument(
        "--gaps", action="store_true", help="only time streams next to costly answers; no result"
    )
    asked = parser.parse_args()
    names = ["victim", *(f"attacker-{number}" for number in range(ATTACKERS))]
    keys = {name: secrets.token_hex(24) for name in names}
    with running_as(with_small_model(FLEET, LAYERS), keys) as fleet:
        if asked.gaps:
            print(asyncio.run(only_gaps(fleet, keys)))
            return
        figures, goals = asyncio.run(measure(fleet, keys))
    report.finish("grammars", figures, goals, seeds=RULE.reported)


if __name__ == "__main__":
    main()
