"""From a gateway to an engine: HTTP straight to the replica, reserved through Ray Serve.

Ray Serve picks a replica in ranked order and holds a reservation on it, so that
`max_ongoing_requests`, queueing and draining stay Ray Serve's; the request itself goes to the
replica's own HTTP server. It goes to the best-ranked replica at once, while the reservation is
being made: when that replica is full, or gone, it is sent again to the one Ray Serve picked.
docs/architecture.md has the figures that chose this way.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.gateway.errors import ApiError
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import NOT_RESERVED, RESERVED_HEADER

logger = logging.getLogger("ray.serve")

# How often a replica is looked after that works on a request whose reservation is elsewhere.
LOOK_PERIOD_S = 0.25


@dataclass(frozen=True)
class Reservation:
    """A place on one replica, reserved through Ray Serve or asked for without; `headers` let a
    request into it."""

    replica_id: str
    url: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Route:
    """Where a request should go: `ranked_ids`, best first, and the best one's address, if known.

    `ticket` names this attempt; `is_alive` says whether a replica still shows signs of life.
    `outage` is done when it is known that no replica is up; None: then it waits for one.
    """

    ranked_ids: tuple[str, ...] = ()
    best_url: str | None = None
    ticket: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_alive: Callable[[str], bool] = lambda replica_id: False
    outage: asyncio.Future[None] | None = None


SendRequest = Callable[[Reservation], Awaitable[aiohttp.ClientResponse]]


class ReplicaFailed(Exception):
    """The replica `replica_id` did not answer, or not to the end.

    `was_lost`: it went with the request in it, so that the request may be why. `error`: what it
    said of its failure itself, for the client; None: it broke off.
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
        reserved: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        best = None
        if route.best_url:
            headers = self._passes.headers(route.best_url, route.ticket)
            best = Reservation(route.ranked_ids[0], route.best_url, headers)
        # Before the reservation, which takes longer to prepare than this to send.
        attempt = asyncio.ensure_future(_sent(send, best)) if best else None
        # An empty context: Ray Serve takes the request id from the current one, and calls
        # that share an id get each other's replicas.
        holder = asyncio.create_task(self._hold(route, reserved), context=contextvars.Context())
        self._holders.add(holder)
        holder.add_done_callback(self._holders.discard)
        served_by = None
        try:
            reservation, answer = best, None
            if attempt is not None:
                answer = await _answer_of(attempt, route, reserved)
            if reservation is None or answer is None:
                reservation = await _reserved(reserved, route)
                answer = await _sent(send, reservation)
            served_by = reservation.replica_id
            if reserved.done() and not _holds(reserved, served_by):
                holder.cancel()  # reserved elsewhere, where nobody will go
            try:
                yield reservation, answer
            finally:
                answer.release()
        finally:
            # The replica ends a hold whose exchange it has seen; any other is ours to end.
            if not _holds(reserved, served_by):
                holder.cancel()
            if reserved.done() and not reserved.cancelled():
                reserved.exception()  # seen: the answer came without it

    async def _hold(self, route: Route, reserved: asyncio.Future[Reservation]) -> None:
        try:
            async with self._handle.choose_replica(route.ranked_ids) as selection:
                response = self._handle.dispatch(selection, route.ticket)
                url = selection.replica_metadata["url"]
                headers = self._passes.headers(url, route.ticket) | {RESERVED_HEADER: "1"}
                if not reserved.done():
                    reserved.set_result(Reservation(selection.replica_id, url, headers))
                await response
        except Exception as error:
            if reserved.done():
                logger.info("a reservation ended early: %s", type(error).__name__)
            else:
                reserved.set_exception(_as_api_error(error))


async def _reserved(reserved: asyncio.Future[Reservation], route: Route) -> Reservation:
    if route.outage is not None:
        either: set[asyncio.Future[Any]] = {reserved, route.outage}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not reserved.done():
            raise NoReplicaUp
    return await reserved


async def _answer_of(
    attempt: asyncio.Future[aiohttp.ClientResponse],
    route: Route,
    reserved: asyncio.Future[Reservation],
) -> aiohttp.ClientResponse | None:
    """The answer to the attempt; None when the request has to go where it is reserved.

    A replica that has no room says so at once. So a reservation elsewhere does not end one that
    waits for its first token: Ray Serve passes over a replica that was slow to tell its queue.
    """
    try:
        while not attempt.done():
            elsewhere = _is_reserved(reserved) and not _holds(reserved, route.ranked_ids[0])
            if elsewhere and not route.is_alive(route.ranked_ids[0]):
                return None
            waiting_for: set[asyncio.Future[Any]] = {attempt}
            if not reserved.done():
                waiting_for.add(reserved)
            await asyncio.wait(
                waiting_for,
                timeout=LOOK_PERIOD_S if elsewhere else None,
                return_when=asyncio.FIRST_COMPLETED,
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


def _is_reserved(reserved: asyncio.Future[Reservation]) -> bool:
    return reserved.done() and not reserved.cancelled() and reserved.exception() is None


def _holds(reserved: asyncio.Future[Reservation], replica_id: str | None) -> bool:
    return _is_reserved(reserved) and reserved.result().replica_id == replica_id


def _as_api_error(error: Exception) -> Exception:
    if isinstance(error, BackPressureError):
        message = "Every replica is busy and the queue is full. Try again later."
        return ApiError(429, message, code="queue_full", retry_after=1)
    if isinstance(error, RayServeException | RayError):
        logger.warning("no reservation: %s", error)
        message = "No replica can take this request now. Try again later."
        return ApiError(503, message, code="no_replica", retry_after=5)
    return error
