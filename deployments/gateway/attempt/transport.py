"""Sends HTTP from a gateway directly to a replica.

The best-ranked replica itself reports to Ray Serve what it admits
(`deployments.engine.serving.tickets`). If it is full, lost or unknown, or other requests already
wait, the request waits for Ray Serve to reserve a place, in ranked order. So
`max_ongoing_requests`, queueing and draining stay with Ray Serve, and a usual request needs no
actor call. docs/architecture.md has the measurements.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
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

from autoscaling.admission.admission import whole_seconds
from deployments.gateway.api.load_codes import NO_REPLICA, QUEUE_FULL
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import IF_ROOM, NOT_RESERVED, RESERVED_HEADER, UNRESERVED_HEADER

logger = logging.getLogger("ray.serve")

# How often the gateway checks a replica that has not answered yet.
LOOK_PERIOD_S = 0.5
# Delay before the next reservation, after a replica was full despite one.
AGAIN_S = 0.1


@dataclass(frozen=True)
class Reservation:
    """A place on one replica, with or without a reservation by Ray Serve. The replica admits
    requests with `headers`."""

    replica_id: str
    url: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Route:
    """Where a request should go: `ranked_ids`, best first, and `best_url`, if the best replica
    admits requests without a reservation.

    `ticket` names this try, and `request_id` its request. `is_alive` returns whether a replica has
    a current lease. `outage` is done when no replica is up; None: the request waits for one.
    `may_overtake`: the request precedes those in the queue, because it has had its turn.
    `sequences` and `uncached_tokens` are the request's work on an engine. `queue_s` predicts in how
    many seconds the replicas have started a queue of this much work; infinite: unknown.
    """

    ranked_ids: tuple[str, ...] = ()
    best_url: str | None = None
    ticket: str = field(default_factory=lambda: uuid.uuid4().hex)
    request_id: str = ""
    is_alive: Callable[[str], bool] = lambda replica_id: False
    outage: asyncio.Future[None] | None = None
    may_overtake: bool = False
    sequences: int = 1
    uncached_tokens: int = 0
    queue_s: Callable[[int, int], float] = lambda sequences, uncached_tokens: math.inf


SendRequest = Callable[[Reservation], Awaitable[aiohttp.ClientResponse]]


class ReplicaFailed(Exception):
    """The replica `replica_id` did not answer, or not completely.

    `was_lost`: it was lost while it had the request, so the request may be the cause. `error`: the
    failure that it reported, for the client; None: it was interrupted. `ran_out_of_memory`: it
    reported that it has no memory for the request.
    """

    def __init__(
        self,
        replica_id: str,
        was_lost: bool = True,
        error: ApiError | None = None,
        ran_out_of_memory: bool = False,
    ) -> None:
        super().__init__(f"replica {replica_id} was interrupted")
        self.replica_id = replica_id
        self.was_lost = was_lost
        self.error = error
        self.ran_out_of_memory = ran_out_of_memory

    @property
    def was_reached(self) -> bool:
        """Return whether the request reached the replica."""
        return self.was_lost or self.error is not None


class NoReplicaUp(Exception):
    """The request waited for a replica, and none is up."""


class Transport:
    """A gateway's way to the replicas of one pool."""

    def __init__(self, handle: DeploymentHandle[Any], secret: str) -> None:
        self._handle = handle.hold
        self._passes = EnginePasses(secret)
        self._holders: set[asyncio.Task[None]] = set()
        # of reservations that are requested and not yet made
        self._queued_sequences = self._queued_tokens = 0

    @asynccontextmanager
    async def exchange(
        self, send: SendRequest, route: Route
    ) -> AsyncIterator[tuple[Reservation, aiohttp.ClientResponse]]:
        """Send a request to the best replica that has space. Yields the place and the answer.

        It waits while all replicas are full. Raises ReplicaFailed, NoReplicaUp, or ApiError: 429
        when the pool's queue is full, 503 when Ray Serve has no replica.
        """
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
                    # the replica admitted another request that Ray Serve did not know of yet
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
        """Return the place that needs no reservation, or None."""
        if not route.best_url or (self._queued_sequences and not route.may_overtake):
            return None
        headers = self._passes.headers(route.best_url, route.ticket) | {UNRESERVED_HEADER: "1"}
        return Reservation(route.ranked_ids[0], route.best_url, headers)

    def _start_hold(
        self, route: Route, reserved: asyncio.Future[Reservation]
    ) -> asyncio.Task[None]:
        self._queued_sequences += route.sequences
        self._queued_tokens += route.uncached_tokens
        reserved.add_done_callback(partial(self._waits_no_more, route))
        # Ray Serve takes its request id from the context, and calls that share an id get each
        # other's replicas. So each reservation has an empty context.
        holder = asyncio.create_task(self._hold(route, reserved), context=contextvars.Context())
        self._holders.add(holder)
        holder.add_done_callback(self._holders.discard)
        return holder

    def _waits_no_more(self, route: Route, reserved: asyncio.Future[Reservation]) -> None:
        self._queued_sequences -= route.sequences
        self._queued_tokens -= route.uncached_tokens

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
                logger.info(
                    "Ray Serve ended the reservation of request %s early: %s",
                    *(route.request_id, type(error).__name__),
                )
            else:
                reserved.set_exception(self._as_api_error(error, route))

    def _as_api_error(self, error: Exception, route: Route) -> Exception:
        if isinstance(error, BackPressureError):
            after_s = whole_seconds(route.queue_s(self._queued_sequences, self._queued_tokens))
            message = f"Every replica is busy and the queue is full. Try again in {after_s} s."
            return ApiError(QUEUE_FULL, message, retry_after=after_s)
        if isinstance(error, RayServeException | RayError):
            request_id = route.request_id
            logger.warning("Ray Serve rejected a reservation of request %s: %s", request_id, error)
            message = "No replica can take this request now. Try again in 5 s."
            return ApiError(NO_REPLICA, message, retry_after=5)
        return error


class _Hold:
    """One request's reservation through Ray Serve, which `start` requests."""

    def __init__(self, start: Callable[[asyncio.Future[Reservation]], asyncio.Task[None]]) -> None:
        self._start = start
        self._holder: asyncio.Task[None] | None = None
        self._reserved: asyncio.Future[Reservation]

    @property
    def waits(self) -> asyncio.Future[Reservation] | None:
        """Return a future of the pending reservation, or None."""
        return None if self._holder is None or self._reserved.done() else self._reserved

    def begin(self) -> None:
        if self._holder is None:
            self._reserved = asyncio.get_running_loop().create_future()
            self._holder = self._start(self._reserved)

    def is_elsewhere(self, replica_id: str) -> bool:
        """Return whether the reservation is on another replica."""
        if self._holder is None or not self._reserved.done() or self._reserved.cancelled():
            return False
        made = self._reserved.exception() is None
        return made and self._reserved.result().replica_id != replica_id

    async def reserved(self, outage: asyncio.Future[None] | None) -> Reservation:
        """Wait for the reservation. Raises ApiError: when Ray Serve rejects it. Raises NoReplicaUp:
        when `outage` is done first."""
        self.begin()
        if outage is not None:
            either: set[asyncio.Future[Any]] = {self._reserved, outage}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._reserved.done():
                raise NoReplicaUp
        return await self._reserved

    def keep_for(self, replica_id: str) -> None:
        """End the reservation unless this replica has it, which ends those that it serves."""
        if self.waits or self.is_elsewhere(replica_id):
            self.end()

    def end(self) -> None:
        """Release the reservation. `begin` may request another."""
        if self._holder is not None:
            self._holder.cancel()
            self._holder = None
            if not self._reserved.done():
                self._reserved.cancel()
            elif not self._reserved.cancelled():
                self._reserved.exception()  # retrieved, so that asyncio does not log it


async def _answer_of(
    sending: Coroutine[Any, Any, aiohttp.ClientResponse],
    replica_id: str,
    route: Route,
    hold: _Hold,
) -> aiohttp.ClientResponse | None:
    """Return the answer of this replica; None: the request must use its reservation instead.

    A full replica reports that at once. If a replica loses its lease, the request leaves it for a
    reservation elsewhere: Ray Serve skips replicas that do not answer.
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
