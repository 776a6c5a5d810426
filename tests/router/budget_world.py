"""Gateways' ledgers and a real Redis by a clock of our own: a minute passes in a moment, and who
dies when is a matter of dice, not of how busy the cores are.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest

from router.budgets import budget_ledger, budget_scripts
from router.budgets.budget_ledger import BudgetLedger
from router.budgets.budget_limits import Granted, NotGranted, TenantBudget
from router.budgets.budget_scripts import WINDOW
from router.redis.redis_client import AsyncRedis
from router.redis.redis_lane import Lane, open_lane
from tests.waiting import cancelled, until

TIME = "our:time"
PATIENCE_S = 60.0


def at_our_time(script: str) -> str:
    changed = script.replace("redis.call('TIME')", f"{{redis.call('GET', '{TIME}'), 0}}")
    assert changed != script
    return changed


class _Lane:
    """A gateway's connection, whose Redis has our clock."""

    def __init__(self, lane: Lane, world: World, place: int) -> None:
        self._lane, self._world, self._place = lane, world, place

    @property
    def closed(self) -> bool:
        closed: bool = self._lane.closed
        return closed

    async def call(self, *command: Any, deadline: float | None = None) -> Any:
        if not self._world.reaches(self._place):
            raise ConnectionError("away")
        if deadline is not None:
            deadline = asyncio.get_running_loop().time() + PATIENCE_S
        reply = await self._lane.call(*command, deadline=deadline)
        if command[0] == "EVALSHA":
            await self._world.answers.wait()
        if command == ("TIME",):
            return [self._world.redis_time, 0]
        return reply

    async def aclose(self) -> None:
        await self._lane.aclose()


class World:
    """A fleet's gateways, by place, and their Redis. Places outlive gateways with a `folder`.

    `away`: no gateway reaches Redis; `cut`: those gateways do not; `answers`: while it is not set,
    a script's answer is late; `redis_ahead_s`: by how much its clock is ahead of theirs. `grants`:
    when, and tokens used.
    """

    def __init__(
        self, redis: AsyncRedis, folder: Path | None, count: int, patch: pytest.MonkeyPatch
    ) -> None:
        self.redis = redis
        self.time = 1_000_000.0
        self.redis_ahead_s = 0.0
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.cut: set[int] = set()
        self.grants: list[tuple[float, int]] = []
        self._held: list[tuple[int, BudgetLedger, Granted, int]] = []
        self._folder = folder
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._count = count
        self.ledgers: dict[int, BudgetLedger] = {}
        world = self

        async def lane_of(redis: Any, key: bytes) -> Any:
            if not world.reaches(redis.place):
                raise ConnectionError("away")
            return _Lane(await open_lane(world.redis, key), world, redis.place)

        patch.setattr(budget_ledger, "open_lane", lane_of)
        patch.setattr(budget_ledger, "PATIENCE_S", 0.0)
        patch.setattr(BudgetLedger, "_now", lambda ledger: world.now())
        scripts = {name: at_our_time(getattr(budget_scripts, name)) for name in _SCRIPTS}
        for name, script in scripts.items():
            patch.setattr(budget_ledger, name, script)
        shas = {script: sha1(script.encode()).hexdigest() for script in scripts.values()}
        patch.setattr(budget_ledger, "_SHA", shas)

    def now(self) -> float:
        return self.time

    @property
    def redis_time(self) -> float:
        return self.time + self.redis_ahead_s

    def reaches(self, place: int) -> bool:
        return not self.away and place not in self.cut

    async def start_all(self) -> None:
        """And let a window pass, after which they grant."""
        await self.redis.set(TIME, self.redis_time)
        for place in range(self._count):
            self.start(place)
        await self.beat()
        await self.pass_s(WINDOW + 2)

    def start(self, place: int) -> None:
        class Redis:
            pass

        redis: Any = Redis()
        redis.place = place
        name = "" if self._folder else f"g{place}.{random.random()}"
        ledger = BudgetLedger(redis, "fleet", self._count, 1.0, name, self._folder)
        self.ledgers[place] = ledger
        self._tasks[place] = asyncio.create_task(ledger.run())

    async def kill(self, place: int) -> None:
        """As SIGKILL does: its place is free."""
        await cancelled(self._tasks.pop(place))
        self.ledgers.pop(place)._place.close(for_good=False)

    async def kill_redis(self) -> None:
        """Stop Redis. It restarts empty, once `away` is false again."""
        self.away = True
        await self.redis.flushall()
        await self.redis.set(TIME, self.redis_time)

    async def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time += 1
            await self.redis.set(TIME, self.redis_time)
            await self.beat()

    async def beat(self) -> None:
        """Each that reaches Redis has reported to it, and each that does not has noticed."""
        since = self.now()
        for place, ledger in self.ledgers.items():
            ledger._wake.set()

            def knows(ledger: BudgetLedger = ledger, place: int = place) -> bool:
                if not self.reaches(place):
                    return ledger.by_share
                heard_from = ledger._place.beats.heard_from or 0.0
                return heard_from >= since and not ledger.by_share

            await until(knows, PATIENCE_S)

    async def ask(
        self, place: int, budget: TenantBudget, most: int, used: int, held: bool = False
    ) -> bool:
        """One request; it ends at once, or with `settle`. Whether it was admitted."""
        ledger = self.ledgers[place]
        answer = await ledger.reserve([budget], most)
        if isinstance(answer, NotGranted):
            return False
        self.grants.append((self.now(), used))
        if held:
            self._held.append((place, ledger, answer, used))
        else:
            ledger.settle(answer, used)
        return True

    def settle(self) -> None:
        """What is held ends, but what died with its gateway."""
        for place, ledger, answer, used in self._held:
            if self.ledgers.get(place) is ledger:
                ledger.settle(answer, used)
        self._held.clear()

    async def end(self) -> None:
        for place in list(self.ledgers):
            with suppress(KeyError):
                await self.kill(place)

    def most(self) -> int:
        """In any 60 s."""
        inside: deque[tuple[float, int]] = deque()
        tokens = most = 0
        for at, used in self.grants:
            inside.append((at, used))
            tokens += used
            while at - inside[0][0] >= 60:
                tokens -= inside.popleft()[1]
            most = max(most, tokens)
        return most

    def used(self, since: float) -> int:
        return sum(used for at, used in self.grants if at >= since)


_SCRIPTS = ("BEAT", "LEAVE", "RESERVE", "SETTLE")
