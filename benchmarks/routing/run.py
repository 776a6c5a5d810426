"""What routing by prefix brings: make bench-routing ARGS="--seeds 4 --write"

One fleet of real engines, the same traffic under each policy in turn: for each seed and workload
the policies run in a new order, each with cold caches. Nobody's cache can help another run, for
each has a cache salt of its own; resetting the engines' caches between runs only keeps their
memory alike. loadgen/workloads.py has the traffic, benchmarks/routing/oracle.py the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.routing import page, plots, results
from benchmarks.routing.oracle import most_cached
from benchmarks.routing.results import RoutingRun
from benchmarks.stand import report
from benchmarks.stand.conversation_player import PATH, Answer, Failure, Style, play
from benchmarks.stand.fleet import BenchFleet, running
from benchmarks.stand.small_model import small_model
from cli import stream_client
from deployments.prompt import PromptTokens, RendererFacts
from deployments.wire.headers import RENDERER_PATH
from loadgen.workloads import Conversation, conversations

# What four small engines on two cores have room for.
WORKLOADS = ("multi_turn", "shared_system", "hot_prefix", "short", "no_reuse")
POLICIES = ("prefix", "least_loaded", "random", "round_robin", "power_of_two", "session")
SEGMENT_TOKENS = 128
WARM_UP_SECONDS = 8.0
# A run that takes so much longer than its arrivals hangs.
GRACE_SECONDS = 120.0
READY_SECONDS, RESET_SECONDS, SETTLE_SECONDS = 30.0, 10.0, 0.5
FLEET = Path(__file__).with_name("fleet.yaml")
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"


class RoutingBench:
    """The runs on one running fleet."""

    def __init__(self, http: aiohttp.ClientSession, fleet: BenchFleet) -> None:
        self._http = http
        self._fleet = fleet
        self._urls: list[str] = []
        self._tokens: PromptTokens

    async def prepare(self) -> None:
        """Wait until the gateway routes by tokens, and run once to no account."""
        async with self._http.get(
            self._fleet.engine.url + RENDERER_PATH, headers=self._fleet.engine.headers
        ) as answer:
            answer.raise_for_status()
            self._tokens = PromptTokens(RendererFacts.from_json(await answer.read()))
        async with asyncio.timeout(READY_SECONDS):
            while not (pool := await self._pool())["index"]["prompts_known"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        self._urls = [replica["url"] for replica in pool["replicas"]]
        for workload in ("no_reuse", "short"):
            await self.run(workload, "least_loaded", seed=0, seconds=WARM_UP_SECONDS)

    async def run(self, workload: str, policy: str, seed: int, seconds: float) -> RoutingRun:
        await self._reset_caches()
        talks = conversations(workload, seed, seconds)
        style = Style(self._fleet.model, policy, salt=f"{workload}.{policy}.{seed}")
        failed_before = await self._lookups_failed()
        async with asyncio.timeout(seconds + GRACE_SECONDS):
            outcomes = await play(self._http, self._fleet.gateway, style, talks)
        failures = tuple(o for o in outcomes if isinstance(o, Failure))
        if len(failures) == len(outcomes):
            raise RuntimeError(f"{workload} under {policy}: every request failed, {failures[0]}")
        answers = sorted((o for o in outcomes if isinstance(o, Answer)), key=lambda a: a.started)
        return RoutingRun(
            workload=workload,
            policy=policy,
            seed=seed,
            replicas=len(self._urls),
            answers=tuple(answers),
            most_cached=tuple(self._oracle(style, talks, answers)),
            failures=failures,
            lookups_failed=await self._lookups_failed() - failed_before,
        )

    def _oracle(
        self, style: Style, talks: Sequence[Conversation], answers: Sequence[Answer]
    ) -> list[int]:
        by_name = {talk.name: talk for talk in talks}
        prompts = []
        for answer in answers:
            body = style.body(by_name[answer.conversation].turns[answer.turn])
            (prompt,) = self._tokens.token_ids(PATH, body) or ([],)
            if len(prompt) != answer.prompt_tokens:
                raise RuntimeError(
                    f"the engine counts {answer.prompt_tokens} prompt tokens of "
                    f"{answer.conversation}, the benchmark {len(prompt)}"
                )
            prompts.append(prompt)
        return most_cached(prompts, SEGMENT_TOKENS)

    async def _reset_caches(self) -> None:
        """Raises TimeoutError when an engine goes on holding blocks."""
        async with asyncio.timeout(RESET_SECONDS):
            for url in self._urls:
                while not await self._reset(url):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_SECONDS)

    async def _reset(self, url: str) -> bool:
        async with self._http.post(
            f"{url}/reset_prefix_cache", headers=self._fleet.passes.headers(url)
        ) as answer:
            answer.raise_for_status()
            return bool((await answer.json())["success"])

    async def _lookups_failed(self) -> int:
        index = (await self._pool())["index"]
        return int(index["failures"]) + int(index["skipped"])

    async def _pool(self) -> dict[str, Any]:
        gateway = self._fleet.gateway
        async with self._http.get(
            f"{gateway.url}/antefix/status", headers=gateway.headers
        ) as answer:
            answer.raise_for_status()
            pool: dict[str, Any] = (await answer.json())["pools"]["engine"]
            return pool


async def measure(fleet: BenchFleet, options: argparse.Namespace) -> list[RoutingRun]:
    runs: list[RoutingRun] = []
    order = random.Random(0)
    async with stream_client.session() as http:
        bench = RoutingBench(http, fleet)
        await bench.prepare()
        for seed in range(1, options.seeds + 1):
            for workload in options.workloads:
                for policy in order.sample(options.policies, len(options.policies)):
                    run = await bench.run(workload, policy, seed, options.seconds)
                    runs.append(run)
                    _tell(run)
    rank = {name: i for i, name in enumerate((*options.workloads, *options.policies))}
    return sorted(runs, key=lambda run: (rank[run.workload], rank[run.policy], run.seed))


def _tell(run: RoutingRun) -> None:
    if run.failures:
        print(f"{len(run.failures)} failed; the first: {run.failures[0].reason}", file=sys.stderr)
    ((_, summary),) = results.summaries([run]).items()
    tail = summary.ttft_tail
    print(
        f"seed {run.seed} {run.workload:13} {run.policy:12} {summary.requests:3} requests,"
        f" TTFT mean {summary.ttft_mean:.3f} s, {tail.name} {tail.value:.3f} s,"
        f" cached {summary.cached_ratio:.3f} of {summary.oracle_ratio:.3f},"
        f" {summary.lookups_failed} lookups failed",
        flush=True,
    )


def write_docs(text: str, found: results.Summaries) -> None:
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "routing.md").write_text(text)
    plots.draw(found, DOCS / "routing.svg")


def main() -> None:
    options = _options()
    began = time.monotonic()
    description = yaml.safe_load(FLEET.read_text())
    description["pools"]["engine"]["model"] = str(small_model())
    with tempfile.TemporaryDirectory(prefix="afx-bench-") as folder:
        fleet_file = Path(folder) / "routing.yaml"
        fleet_file.write_text(yaml.safe_dump(description))
        with running(fleet_file) as fleet:
            runs = asyncio.run(measure(fleet, options))
    found, goals = results.summaries(runs), results.goals(runs)
    print("\n" + page.table(found) + "\n")
    if options.write:
        minutes = (time.monotonic() - began) / 60
        command = report.command("routing")
        write_docs(page.page(found, goals, command, minutes, report.machine_in_words()), found)
    report.finish("routing", results.figures(found), goals, seeds=range(1, options.seeds + 1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing.run", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--seeds", type=int, default=2, help="how often each run is repeated")
    parser.add_argument("--seconds", type=float, default=16.0, help="of arrivals in a run")
    for name, choices in (("policies", POLICIES), ("workloads", WORKLOADS)):
        parser.add_argument(f"--{name}", nargs="+", choices=choices, default=choices)
    parser.add_argument("--write", action="store_true", help="docs/benchmarks/routing.{md,svg}")
    options = parser.parse_args()
    if options.seeds < 1 or options.seconds <= 0:
        parser.error("--seeds and --seconds must be above 0")
    return options


if __name__ == "__main__":
    main()
