"""Fair turns at a resource with few places: the tenant whose last turn is longest ago is next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TenantTurns:
    """Turns in one event loop, `places` at once. Within a tenant, first come, first served."""

    def __init__(self, places: int = 1) -> None:
        self._free = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # tenant -> sequence number of its last turn
        self._served: dict[str, int] = {}
        self._turns = 0

    def __len__(self) -> int:
        """The number of waiting tasks."""
        return sum(len(queue) for queue in self._waiting.values())

    def waiting_of(self, tenant: str) -> int:
        return len(self._waiting.get(tenant, ()))

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the block. A cancelled wait leaves the queue."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(tenant)
        self._turns += 1
        self._served[tenant] = self._turns
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn was granted at the same moment
                self._pass_on()
            raise
        finally:
            self._leave(tenant, turn)

    def _pass_on(self) -> None:
        for tenant in sorted(self._waiting, key=lambda name: self._served.get(name, 0)):
            for turn in self._waiting[tenant]:
                if not turn.done():  # a task that was granted a turn may not have run yet
                    turn.set_result(None)
                    return
        self._free += 1

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting[tenant]
        queue.remove(turn)
        if not queue:
            del self._waiting[tenant]
