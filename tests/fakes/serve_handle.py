"""Ray Serve's handle to a pool, without Ray: ranked order, slots and holds, as Serve keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.fakes.engine import FakeEngine


@dataclass(frozen=True)
class Selection:
    replica_id: str
    replica_metadata: dict[str, str]
    engine: FakeEngine


class FakeHandle:
    """Picks the first ranked replica with a free slot, otherwise any other; waits while none has.

    `waiting`: how many requests wait for a slot now.
    """

    def __init__(self, *engines: FakeEngine) -> None:
        self.engines = list(engines)
        self.hold = self
        self.may_pick = asyncio.Event()
        self.may_pick.set()
        self.must_pick: FakeEngine | None = None
        self.refuses_with: Exception | None = None
        self.picked: list[str] = []
        self.waiting = 0
        self._taken: dict[str, int] = {}

    @property
    def slots_taken(self) -> int:
        return sum(self._taken.values())

    @asynccontextmanager
    async def choose_replica(self, ranked_ids: tuple[str, ...]) -> AsyncIterator[Selection]:
        self.waiting += 1
        try:
            await self.may_pick.wait()
            if self.refuses_with is not None:
                raise self.refuses_with
            while (engine := self._with_room(ranked_ids)) is None:  # noqa: ASYNC110  # as Serve does
                await asyncio.sleep(0.005)
        finally:
            self.waiting -= 1
        self._taken[engine.replica_id] = self._taken.get(engine.replica_id, 0) + 1
        self.picked.append(engine.replica_id)
        try:
            yield Selection(engine.replica_id, {"url": engine.url}, engine)
        finally:
            self._taken[engine.replica_id] -= 1

    def dispatch(self, selection: Selection, ticket: str) -> asyncio.Future[Any]:
        return asyncio.ensure_future(selection.engine.tickets.hold(ticket))

    def _with_room(self, ranked_ids: tuple[str, ...]) -> FakeEngine | None:
        if self.must_pick is not None:
            return self.must_pick
        by_id = {engine.replica_id: engine for engine in self.engines}
        ranked = [by_id.pop(replica_id) for replica_id in ranked_ids if replica_id in by_id]
        for engine in [*ranked, *by_id.values()]:
            taken = max(self._taken.get(engine.replica_id, 0), engine.tickets.running)
            if taken < engine.limit:
                return engine
        return None
