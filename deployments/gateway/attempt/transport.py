"""From a gateway to an engine: HTTP straight to the replica.

The best-ranked replica tells Ray Serve itself of what it takes (`deployments.engine.tickets`).
Where it is full or gone, where none is known or others wait already, Ray Serve picks one in ranked
order and holds a reservation on it, for which the request waits: so `max_ongoing_requests`,
queueing and draining are Ray Serve's, and a usual request costs none of its actor calls.
docs/architecture.md has the figures that chose this way.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.gateway.intake.errors import ApiError
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import IF_ROOM, NOT_RESERVED, RESERVED_HEADER, UNRESERVED_HEADER

logger = logging.getLogger("ray.serve")

# How often a replica is looked after from which nothing has come yet.
LOOK_PERIOD_S = 0.5
# Until the next reservation, where a replica was full in spite of one.
AGAIN_S = 0.1


@dataclass(frozen=True)
class Reservation:
    """A place on one replica, reserved through Ray Serve or not; `headers` let a
    request into it."""

    replica_id: str
    url: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Route:
    """Where a request should go: `ranked_ids`, best first, and the best one's address, if it is
    known to take requests without a reservation.

    `ticket` names this attempt; `is_alive` says whether a replica still shows signs of life.
    `outage` is done when it is known that no replica is up; None: then it waits for one.
    `may_overtake` those that wait for a place: its turn has come before.
    """

    ranked_ids: tuple[str, ...] = ()
    best_url: str | None = None
    ticket: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_alive: Callable[[str], bool] = lambda replica_id: False
    outage: asyncio.Future[None] | None = None
    may_overtake: bool = False


SendRequest = Callable[[Reservation], Awaitable[aiohttp.ClientResponse]]


class ReplicaFailed(Exception):
    """The replica `replica_id` did not answer, or not to the end.

    `was_lost`: it went with the request in it, so that the request may be why. `error`: what it
    reported of its failure itself, for the client; None: it broke off.
    """

    def __init__(
        self, replica_id: str, was_lost: bool = True, error: ApiError | None = None
    ) -> None:
        super().__init__(f"replica {replica_id} broke off")
        self.replica_id = replica_id
        self.was_lost = was_lost
        self.error = error

    @property
    def was_reached(self) -> bool:
        """Whether the request came to it at all."""
        return self.was_lost or self.error is not None


class NoReplicaUp(Exception):
    """The request waited for any replica, and there is none."""


class Transport:
    """One pool's replicas, as a gateway reaches them."""

    def __init__(self, handle: DeploymentHandle[Any], secret: str) -> None:
        self._handle = handle.hold
        self._passes = EnginePasses(secret)
        self._holders: set[asyncio.Task[None]] = set()
        # reservations that are requested and not made yet
        self._waiting = 0

    @asynccontextmanager
    async def exchange(
        self, send: SendRequest, route: Route | None = None
    ) -> AsyncIterator[tuple[Reservation, aiohttp.ClientResponse]]:
        """Send a request to the best replica that has room; yields where, and its answer.

        Waits while none has room. Without a route any replica will do. Raises ReplicaFailed,
        NoReplicaUp, or ApiError: 429 when the pool's queue is full, 503 when Ray Serve has no
        replica.
        """
        route = route or Route()
        hold = _Hold(partial(self._start_hold, route))
        place = self._best(route)
        answer = None
        is_served = False
        try:
            if place is not None:
                answer = await _answer_of(_sent(send, place), place.replica_id, route, hold)
            while place is None or answer is None:
                place = await hold.reserved(route.outage)
                answer = await _sent(send, place)
                if answer.status == NOT_RESERVED:
                    # another came in the moment before Ray Serve heard of it
                    answer.release()
                    hold.end()
                    answer = None
                    await asyncio.sleep(AGAIN_S)
            hold.keep_for(place.replica_id)
            is_served = True
            try:
                yield place, answer
            finally:
                answer.release()
        finally:
            if not is_served:
                hold.end()

    def _best(self, route: Route) -> Reservation | None:
        """Where it goes without a reservation; None: nowhere."""
        if not route.best_url or (self._waiting and not route.may_overtake):
            return None
        headers = self._passes.headers(route.best_url, route.ticket) | {UNRESERVED_HEADER: "1"}
        return Reservation(route.ranked_ids[0], route.best_url, headers)

    def _start_hold(
        self, route: Route, reserved: asyncio.Future[Reservation]
    ) -> asyncio.Task[None]:
        self._waiting += 1
        reserved.add_done_callback(self._waits_no_more)
        # An empty context: Ray Serve takes the request id from the current one, and calls
        # that share an id get each other's replicas.
        holder = asyncio.create_task(self._hold(route, reserved), context=contextvars.Context())
        self._holders.add(holder)
        holder.add_done_callback(self._holders.discard)
        return holder

    def _waits_no_more(self, reserved: asyncio.Future[Reservation]) -> None:
        self._waiting -= 1

    async def _hold(self, route: Route, reserved: asyncio.Future[Reservation]) -> None:
        try:
            async with self._handle.choose_replica(route.ranked_ids) as selection:
                response = self._handle.dispatch(selection, route.ticket)
                url = selection.replica_metadata["url"]
                headers = self._passes.headers(url, route.ticket) | {RESERVED_HEADER: IF_ROOM}
                if not reserved.done():
                    reserved.set_result(Reservation(selection.replica_id, url, headers))
                await response
        except Exception as error:
            if reserved.done():
                logger.info("a reservation ended early: %s", type(error).__name__)
            else:
                reserved.set_exception(_as_api_error(error))


class _Hold:
    """One request's reservation through Ray Serve, from when `start` requests it."""

    def __init__(self, start: Callable[[asyncio.Future[Reservation]], asyncio.Task[None]]) -> None:
        self._start = start
        self._holder: asyncio.Task[None] | None = None
        self._reserved: asyncio.Future[Reservation]

    @property
    def waits(self) -> asyncio.Future[Reservation] | None:
        """Done when it is made, or cannot be; None: it was not requested, or is done."""
        return None if self._holder is None or self._reserved.done() else self._reserved

    def begin(self) -> None:
        if self._holder is None:
            self._reserved = asyncio.get_running_loop().create_future()
            self._holder = self._start(self._reserved)

    def is_elsewhere(self, replica_id: str) -> bool:
        """Whether it was made on another replica."""
        if self._holder is None or not self._reserved.done() or self._reserved.cancelled():
            return False
        made = self._reserved.exception() is None
        return made and self._reserved.result().replica_id != replica_id

    async def reserved(self, outage: asyncio.Future[None] | None) -> Reservation:
        """Once it is made. Raises ApiError, and NoReplicaUp once `outage` is done."""
        self.begin()
        if outage is not None:
            either: set[asyncio.Future[Any]] = {self._reserved, outage}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._reserved.done():
                raise NoReplicaUp
        return await self._reserved

    def keep_for(self, replica_id: str) -> None:
        """The replica ends a hold whose exchange it has seen; any other is ours to end."""
        if self.waits or self.is_elsewhere(replica_id):
            self.end()

    def end(self) -> None:
        """It may be begun again."""
        if self._holder is not None:
            self._holder.cancel()
            self._holder = None
            if not self._reserved.done():
                self._reserved.cancel()
            elif not self._reserved.cancelled():
                self._reserved.exception()  # seen: the answer came without it


async def _answer_of(
    sending: Coroutine[Any, Any, aiohttp.ClientResponse],
    replica_id: str,
    route: Route,
    hold: _Hold,
) -> aiohttp.ClientResponse | None:
    """The answer to what was sent there; None when the request has to go where it is reserved.

    A replica that has no room says so at once. From one that shows no signs of life it goes as soon
    as it has a reservation elsewhere: Ray Serve passes over a replica that does not answer.
    """
    attempt = asyncio.ensure_future(sending)
    try:
        while not attempt.done():
            if not route.is_alive(replica_id):
                if hold.is_elsewhere(replica_id):
                    return None
                hold.begin()
            waiting_for: set[asyncio.Future[Any]] = {attempt}
            if (reserved := hold.waits) is not None:
                waiting_for.add(reserved)
            await asyncio.wait(
                waiting_for, timeout=LOOK_PERIOD_S, return_when=asyncio.FIRST_COMPLETED
            )
        answer = attempt.result()
        if answer.status == NOT_RESERVED:
            answer.release()
            return None
        return answer
    finally:
        attempt.cancel()


async def _sent(send: SendRequest, reservation: Reservation) -> aiohttp.ClientResponse:
    try:
        return await send(reservation)
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        reached = not isinstance(
            error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
        )
        raise ReplicaFailed(reservation.replica_id, was_lost=reached) from error


def _as_api_error(error: Exception) -> Exception:
    if isinstance(error, BackPressureError):
        message = "Every replica is busy and the queue is full. Try again later."
        return ApiError(429, message, code="queue_full", retry_after=1)
    if isinstance(error, RayServeException | RayError):
        logger.warning("no reservation: %s", error)
        message = "No replica can take this request now. Try again later."
        return ApiError(503, message, code="no_replica", retry_after=5)
    return error
