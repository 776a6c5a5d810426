"""Workloads on four small real engines, under one routing policy at a time.

Each run begins with cold caches and has a separate cache salt.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness.fleets.fleet import BenchFleet
from benchmarks.harness.load.conversation_player import PATH, Answer, Style, play
from benchmarks.harness.load.oracle import most_cached
from deployments.prompt import PromptTokens, RendererFacts
from deployments.wire.headers import RENDERER_PATH
from loadgen.workloads import WORKLOADS as CHAT_WORKLOADS
from loadgen.workloads import Conversation, conversations

# What four small engines on two cores have room for.
WORKLOADS = ("multi_turn", "shared_system", "hot_prefix", "short", "no_reuse")
SEGMENT_TOKENS = 128
WARM_UP_SECONDS = 8.0
# A run that takes longer than its arrivals by this hangs.
GRACE_SECONDS = 120.0
READY_SECONDS, RESET_SECONDS, SETTLE_SECONDS = 30.0, 10.0, 0.5
FLEET = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class RoutingRun:
    """`most_cached`: the oracle's tokens, of each answer. `replicas` of the pool. `failures`: why
    requests have no answer. `lookups_failed`: those placed without the index, which did not answer
    in time."""

    workload: str
    policy: str
    seed: int
    replicas: int
    answers: tuple[Answer, ...]
    most_cached: tuple[int, ...]
    failures: tuple[str, ...] = ()
    lookups_failed: int = 0

    @property
    def requests_spread(self) -> float:
        """The most requests a replica served, over the mean."""
        return self._spread([(answer.replica, 1) for answer in self.answers])

    @property
    def tokens_spread(self) -> float:
        """The most prompt tokens a replica computed, over the mean."""
        return self._spread([(a.replica, a.prompt_tokens - a.cached_tokens) for a in self.answers])

    def _spread(self, shares: Iterable[tuple[str, int]]) -> float:
        by_replica: dict[str, int] = defaultdict(int)
        for replica, amount in shares:
            by_replica[replica] += amount
        total = sum(by_replica.values())
        return max(by_replica.values()) * self.replicas / total if total else 1.0

    @property
    def throughput(self) -> float:
        """Requests per second, from the first that was due to the last that ended."""
        span = max(a.ended for a in self.answers) - min(a.due for a in self.answers)
        return len(self.answers) / span


class RoutingBench:
    """The runs on one running fleet."""

    def __init__(self, http: aiohttp.ClientSession, fleet: BenchFleet) -> None:
        self._http = http
        self._fleet = fleet
        self._urls: list[str] = []
        self._tokens: PromptTokens

    async def prepare(self) -> None:
        """Wait until the gateway routes by tokens, and run once without counting."""
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

    async def run(
        self, workload: str, policy: str, seed: int, seconds: float, rate_times: float = 1.0
    ) -> RoutingRun:
        await self._reset_caches()
        of = CHAT_WORKLOADS[workload]
        arrivals = of.arrivals(seconds, rate_times * of.rate)
        talks = conversations(workload, seed, seconds, arrivals)
        style = Style(self._fleet.model, policy, salt=f"{workload}.{policy}.{seed}")
        failed_before = await self._lookups_failed()
        async with asyncio.timeout(seconds + GRACE_SECONDS):
            outcomes = await play(self._http, self._fleet.gateway, style, talks)
        failures = tuple(o for o in outcomes if isinstance(o, str))
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
        """Raises TimeoutError when an engine keeps its blocks."""
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
        pool: dict[str, Any] = (await asyncio.to_thread(self._fleet.pools))["engine"]
        return pool
