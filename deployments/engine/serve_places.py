"""The places on this replica, as Ray Serve counts them, taken without asking it from outside.

A request that comes without a reservation takes its place here, by the methods that Ray Serve's own
actor calls end in (`Replica.reserve_slot` and `release_slot` in ray/serve/_private/replica.py,
2.60): so its limit, the queue lengths that it tells and its draining are of all that runs. They
belong to Ray Serve's event loop, in another thread, which hears of all that happened in one turn of
the engine's loop at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray._private.worker import global_worker
from ray.serve._private.common import RequestMetadata

logger = logging.getLogger("ray.serve")

# Of no request of Ray Serve's.
_METADATA = RequestMetadata(request_id="antefix", internal_request_id="antefix")


class ServePlaces:
    """To be used in one event loop, which is another than `replica`'s, or the same.

    `replica` is Ray Serve's `Replica` in this process.
    """

    def __init__(self, replica: Any) -> None:
        self._replica = replica
        self._loop: asyncio.AbstractEventLoop = replica._event_loop
        # token, and whether it is taken or given back
        self._untold: list[tuple[str, bool]] = []

    @classmethod
    def here(cls) -> ServePlaces | None:
        """Of the replica that this process is; None where Ray Serve is another than we know."""
        try:
            replica = global_worker.actors[global_worker.actor_id]._replica_impl
            for name in ("_event_loop", "_shutting_down", "reserve_slot", "release_slot"):
                getattr(replica, name)
            int(replica.get_num_ongoing_requests())
        except (AttributeError, KeyError) as error:
            logger.warning("every request needs a reservation through Ray Serve: %r", error)
            return None
        return cls(replica)

    @property
    def taken(self) -> int:
        """By reservations, too, whose requests have not come yet."""
        return int(self._replica.get_num_ongoing_requests())

    @property
    def is_stopping(self) -> bool:
        """Whether Ray Serve stops this replica. It tells the deployment class last, in `__del__`,
        once all that it counts has ended."""
        return bool(self._replica._shutting_down)

    def take(self, token: str) -> None:
        """Where there is none left, Ray Serve does not count it.

        Nor while it stops this replica: it waits until none is taken, and requests may come until
        all gateways have heard. The HTTP server waits for those.
        """
        if not self.is_stopping:
            self._tell(token, True)

    def give_back(self, token: str) -> None:
        self._tell(token, False)

    def _tell(self, token: str, is_taken: bool) -> None:
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._untold.append((token, is_taken))

    def _tell_all(self) -> None:
        told, self._untold = self._untold, []
        self._loop.call_soon_threadsafe(self._hear, told)

    def _hear(self, told: list[tuple[str, bool]]) -> None:
        # tasks begin in their order, and this one is done before another begins
        self._loop.create_task(self._count(told))

    async def _count(self, told: list[tuple[str, bool]]) -> None:
        for token, is_taken in told:
            if is_taken:
                await self._replica.reserve_slot(_METADATA, token)
            else:
                self._replica.release_slot(token)
