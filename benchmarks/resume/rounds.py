"""Requests of all kinds to a fleet whose engines are killed in the middle of answers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import aiohttp
import psutil

from benchmarks.harness.fleets.drilled_fleet import DrilledFleet, engine_core_of, eventually
from benchmarks.harness.load.client_answers import ClientAnswer, ask, now, texts
from benchmarks.resume.kinds import KINDS, Kind
from cli.gateway.stream_client import Endpoint

POOL = "engine"
CLIENTS = 32
# Prompts of each kind.
PROMPTS = 2
# For the second of two engines that are killed one after the other.
BETWEEN_S = (0.2, 2.0)
EXPLAINED_WITHIN_S = 10.0


@dataclass(frozen=True)
class Prepared:
    """`undisturbed`: its answers without a kill, alone and among others."""

    kind: Kind
    name: str
    body: dict[str, Any]
    undisturbed: tuple[ClientAnswer, ClientAnswer]


@dataclass
class Disturbed:
    """One answer of a round. `killed`: (seconds of the loop's clock, replica). `explanation`: the
    gateway's; empty without Redis."""

    request: Prepared
    answer: ClientAnswer
    killed: Sequence[tuple[float, str]] = ()
    explanation: dict[str, Any] = field(default_factory=dict)


class Rounds:
    """Of one fleet with this many engines, which may speculate."""

    def __init__(
        self, fleet: DrilledFleet, gateway: Endpoint, engines: int, speculates: bool, seed: int
    ) -> None:
        self._fleet = fleet
        self._gateway = gateway
        self._engines = engines
        self._speculates = speculates
        self._random = random.Random(seed)
        self._requests: Iterator[Prepared] = iter(())
        self._killed: set[str] = set()

    async def prepare(self) -> None:
        """Ask each request undisturbed, twice."""
        kinds = {k: v for k, v in KINDS.items() if v.speculates or not self._speculates}
        asked = [(n, kind, kind.asked(at)) for at in range(PROMPTS) for n, kind in kinds.items()]
        alone = [await self._asked(kind, body) for _, kind, body in asked]
        for at, (name, kind, body) in enumerate(asked):
            if kind.stops:
                (text,) = texts(alone[at].whole["said"])
                asked[at] = (name, kind, kind.stopping(body, text))
                alone[at] = await self._asked(kind, asked[at][2])
        beside: list[ClientAnswer] = []
        for first in range(0, len(asked), CLIENTS):
            some = asked[first : first + CLIENTS]
            beside += await asyncio.gather(*(self._asked(kind, body) for _, kind, body in some))
        requests = [
            Prepared(kind, name, body, (one, other))
            for (name, kind, body), one, other in zip(asked, alone, beside, strict=True)
        ]
        self._random.shuffle(requests)
        self._requests = cycle(requests)

    async def play(self, number: int) -> list[Disturbed]:
        """One round. Each fourth is without Redis, and each second loses two engines of three.
        Raises NotWithin."""
        await eventually("the fleet is whole", self._is_whole)
        at = {await self._fleet.id_of(of, POOL): of for of in self._fleet.replicas(POOL)}
        requests = list(islice(self._requests, CLIENTS))
        answers = [Disturbed(request, ClientAnswer(now())) for request in requests]
        without_redis = number % 4 == 3
        with self._away(self._fleet.redis_server() if without_redis else None):
            asking = [asyncio.create_task(self._ask(one)) for one in answers]
            killed = [await self._kill(answers, at)]
            if self._engines > 2 and number % 2:
                await asyncio.sleep(self._random.uniform(*BETWEEN_S))
                killed.append(await self._kill(answers, at))
            await asyncio.gather(*asking)
        for one in answers:
            one.killed = [kill for kill in killed if kill is not None]
        if not without_redis:
            await self._explain(answers)
        return answers

    async def _kill(
        self, answers: Sequence[Disturbed], at: dict[str, psutil.Process]
    ) -> tuple[float, str] | None:
        """Kill an engine, by its process or by vLLM's, at a random token of a random stream that it
        serves. None where all have ended."""
        under_way = [one for one in answers if one.request.kind.streams]
        for victim in self._random.sample(under_way, len(under_way)):
            answer, kill_core = victim.answer, self._random.random() < 0.5
            place = self._random.randrange(1, len(victim.request.undisturbed[0].events))
            while len(answer.events) < place and answer.ended > now():
                await asyncio.sleep(0.002)
                if answer.replica and answer.replica not in at:
                    break  # it was killed before
            if answer.ended > now() and (actor := at.pop(answer.replica, None)):
                process = engine_core_of(actor) if kill_core else actor
                process.kill()
                self._killed.add(answer.replica)
                return now(), answer.replica
        return None

    async def _is_whole(self) -> bool:
        """With replacements of those that were killed."""
        told = (await self._fleet.status())[POOL]["replicas"]
        is_known = not self._killed & {replica["replica"] for replica in told}
        return is_known and await self._fleet.is_whole()

    async def _asked(self, kind: Kind, body: dict[str, Any]) -> ClientAnswer:
        await ask(answer := ClientAnswer(now()), self._gateway, kind.path, body)
        if answer.code is not None:
            said = answer.body or answer.events[-1:]
            raise RuntimeError(f"nothing was killed, and {kind.path} was answered: {said}")
        return answer

    async def _ask(self, one: Disturbed) -> None:
        await ask(one.answer, self._gateway, one.request.kind.path, one.request.body)

    async def _explain(self, answers: Sequence[Disturbed]) -> None:
        async with aiohttp.ClientSession(headers=self._gateway.headers) as http:

            async def explain(one: Disturbed) -> None:
                url = f"{self._gateway.url}/antefix/requests/{one.answer.request_id}"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with asyncio.timeout(EXPLAINED_WITHIN_S), http.get(url) as told:
                        if told.status == 200:
                            one.explanation = await told.json()

            await asyncio.gather(*map(explain, answers))

    @contextlib.contextmanager
    def _away(self, redis: psutil.Process | None) -> Iterator[None]:
        if redis is None:
            yield
            return
        redis.suspend()
        try:
            yield
        finally:
            redis.resume()
