"""The request slots of this replica, as Ray Serve counts them, taken inside its process.

A request without a reservation takes its slot here. The methods are those behind Ray Serve's own
actor calls (`Replica.reserve_slot` and `release_slot` in ray/serve/_private/replica.py, 2.60). So
Serve's limit, reported queue lengths and draining cover all running requests. The methods belong to
Ray Serve's event loop, in another thread, which gets all changes of one turn of the engine's loop
at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray._private.worker import global_worker
from ray.serve._private.common import RequestMetadata

logger = logging.getLogger("ray.serve")

# The metadata of no real request of Ray Serve.
_METADATA = RequestMetadata(request_id="antefix", internal_request_id="antefix")


class ServePlaces:
    """Use it in one event loop, which may differ from that of `replica`, Ray Serve's `Replica` in
    this process.
    """

    def __init__(self, replica: Any) -> None:
        self._replica = replica
        self._loop: asyncio.AbstractEventLoop = replica._event_loop
        # token, and whether its place is taken or released
        self._untold: list[tuple[str, bool]] = []

    @classmethod
    def here(cls) -> ServePlaces | None:
        """Return the slots of the replica in this process; None with an unknown version of Ray
        Serve."""
        try:
            replica = global_worker.actors[global_worker.actor_id]._replica_impl
            for name in ("_event_loop", "_shutting_down", "reserve_slot", "release_slot"):
                getattr(replica, name)
            int(replica.get_num_ongoing_requests())
        except (AttributeError, KeyError) as error:
            logger.warning(
                "direct admission is unavailable; every request needs a reservation through Ray"
                " Serve: %r",
                error,
            )
            return None
        return cls(replica)

    @property
    def taken(self) -> int:
        """Number of taken slots, including reservations whose requests have not arrived yet."""
        return int(self._replica.get_num_ongoing_requests())

    @property
    def is_stopping(self) -> bool:
        """Whether Ray Serve stops this replica. It notifies the deployment class last, in
        `__del__`, once all counted requests have ended."""
        return bool(self._replica._shutting_down)

    def take(self, token: str) -> None:
        """Take a slot. If none is left, Ray Serve does not count the request.

        The same applies while it stops this replica: it waits until none is taken, and requests may
        arrive until all gateways know. The HTTP server waits for those.
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
        # tasks start in order, and this one ends before the next starts
        self._loop.create_task(self._count(told))

    async def _count(self, told: list[tuple[str, bool]]) -> None:
        for token, is_taken in told:
            if is_taken:
                await self._replica.reserve_slot(_METADATA, token)
            else:
                self._replica.release_slot(token)
