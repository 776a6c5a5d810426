"""From a gateway to an engine: HTTP straight to the replica, under a slot Ray Serve reserves.

Ray Serve picks a replica in ranked order and holds a slot on it, so `max_ongoing_requests`,
queueing and draining stay Ray Serve's; the request itself goes to the replica's own HTTP
server. It goes to the best-ranked replica at once, while the slot is being reserved: when
Ray Serve picks another one, or the replica is full, it is sent again to the one picked.
docs/architecture.md has the figures that chose this way.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.errors import ApiError
from deployments.tickets import NOT_RESERVED, RESERVED_HEADER, SECRET_HEADER, TICKET_HEADER

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class Slot:
    """A place on one replica; `headers` let a request into it."""

    replica_id: str
    url: str
    headers: dict[str, str]


SendRequest = Callable[[Slot], Awaitable[aiohttp.ClientResponse]]


class ReplicaFailed(Exception):
    """The replica broke off before it answered; `replica_id` says which."""

    def __init__(self, replica_id: str) -> None:
        super().__init__(f"replica {replica_id} broke off")
        self.replica_id = replica_id


class Transport:
    """One pool's replicas, as a gateway reaches them."""

    def __init__(self, handle: DeploymentHandle[Any], secret: str) -> None:
        self._handle = handle.hold
        self._secret = secret
        self._holders: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def exchange(
        self, send: SendRequest, ranked_ids: tuple[str, ...] = (), best_url: str | None = None
    ) -> AsyncIterator[tuple[Slot, aiohttp.ClientResponse]]:
        """Send a request to the best replica that has room; yields where, and its answer.

        Waits while none has room. `best_url` is the address of `ranked_ids[0]`, if known.
        Raises ReplicaFailed, or ApiError: 429 when the pool's queue is full, 503 when Ray
        Serve has no replica to give.
        """
        ticket = uuid.uuid4().hex
        reserved: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        best = Slot(ranked_ids[0], best_url, self._headers(ticket)) if best_url else None
        # Before the reservation, which takes longer to prepare than this to send.
        attempt = asyncio.ensure_future(_sent(send, best)) if best else None
        # An empty context: Ray Serve takes the request id from the current one, and calls
        # that share an id get each other's replicas.
        holder = asyncio.create_task(
            self._hold(ranked_ids, ticket, reserved), context=contextvars.Context()
        )
        self._holders.add(holder)
        holder.add_done_callback(self._holders.discard)
        served_by = None
        try:
            slot, answer = best, None
            if attempt is not None:
                answer = await _answer_of(attempt, ranked_ids[0], reserved)
            if slot is None or answer is None:
                slot = await reserved
                answer = await _sent(send, slot)
            served_by = slot.replica_id
            try:
                yield slot, answer
            finally:
                answer.release()
        finally:
            # The replica ends a hold whose exchange it has seen; any other is ours to end.
            if not _holds(reserved, served_by):
                holder.cancel()
            if reserved.done() and not reserved.cancelled():
                reserved.exception()  # seen: the answer came without the slot

    async def _hold(
        self, ranked_ids: tuple[str, ...], ticket: str, reserved: asyncio.Future[Slot]
    ) -> None:
        try:
            async with self._handle.choose_replica(ranked_ids) as selection:
                response = self._handle.dispatch(selection, ticket)
                headers = self._headers(ticket) | {RESERVED_HEADER: "1"}
                url = selection.replica_metadata["url"]
                if not reserved.done():
                    reserved.set_result(Slot(selection.replica_id, url, headers))
                await response
        except Exception as error:
            if reserved.done():
                logger.info("a slot ended early: %s", type(error).__name__)
            else:
                reserved.set_exception(_as_api_error(error))

    def _headers(self, ticket: str) -> dict[str, str]:
        return {SECRET_HEADER: self._secret, TICKET_HEADER: ticket}


async def _answer_of(
    attempt: asyncio.Future[aiohttp.ClientResponse], replica_id: str, reserved: asyncio.Future[Slot]
) -> aiohttp.ClientResponse | None:
    """The answer to the attempt; None when the request has to go where the slot is."""
    try:
        await asyncio.wait((attempt, reserved), return_when=asyncio.FIRST_COMPLETED)
        if not attempt.done() and (await reserved).replica_id == replica_id:
            await asyncio.wait((attempt,))
        if not attempt.done():
            return None
        answer = attempt.result()
        if answer.status == NOT_RESERVED:
            answer.release()
            return None
        return answer
    finally:
        attempt.cancel()


async def _sent(send: SendRequest, slot: Slot) -> aiohttp.ClientResponse:
    try:
        return await send(slot)
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise ReplicaFailed(slot.replica_id) from error


def _holds(reserved: asyncio.Future[Slot], replica_id: str | None) -> bool:
    if not reserved.done() or reserved.cancelled() or reserved.exception():
        return False
    return reserved.result().replica_id == replica_id


def _as_api_error(error: Exception) -> Exception:
    if isinstance(error, BackPressureError):
        message = "every replica is busy and the queue is full; try again later"
        return ApiError(429, message, code="queue_full", retry_after=1)
    if isinstance(error, RayServeException | RayError):
        logger.warning("no slot: %s", error)
        message = "no replica can take this request now; try again later"
        return ApiError(503, message, code="no_replica", retry_after=5)
    return error
