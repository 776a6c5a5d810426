"""Admission of requests to this replica, and Ray Serve's count of them.

Ray Serve counts, queues and drains exactly the running requests, although no token passes through
its object streams. A gateway sends a request straight to the replica's HTTP server, without a
reservation. The gate admits it while the replica is below `max_ongoing_requests`, and takes its
slot in Ray Serve's count (`ServePlaces`). Otherwise it answers `NOT_RESERVED`. The gateway then
reserves a slot through Ray Serve, which queues it, and dispatches `hold(ticket)` into the slot. It
sends the request again with the same ticket. `hold` returns when that HTTP exchange ends. If a
gateway dies, its connections break and the slots become free.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from starlette.responses import JSONResponse
from starlette.status import WS_1008_POLICY_VIOLATION as POLICY_VIOLATION
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from deployments.engine.serving.serve_places import ServePlaces
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import (
    IF_ROOM,
    NOT_RESERVED,
    PASS_HEADER,
    RESERVED_HEADER,
    TICKET_HEADER,
    UNRESERVED_HEADER,
)

# How long one copy of a request waits for the other: a gateway sends both within milliseconds.
TWIN_TIMEOUT_S = 30.0
# Long enough for every gateway to read a snapshot with an arrival.
ARRIVED_S = 1.0
ARRIVALS = 1024


@dataclass
class _Exchange:
    """`has_place`: it has a slot in Ray Serve's count; `holds` are its reservations."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    has_place: bool = False
    holds: int = 0


class Tickets:
    """The exchanges of one replica, by ticket. All methods run in one event loop.

    `places`: Ray Serve's; None: every request has, or waits for, a reservation.
    """

    def __init__(
        self,
        limit: int,
        twin_timeout_s: float = TWIN_TIMEOUT_S,
        places: ServePlaces | None = None,
    ) -> None:
        self.limit = limit
        self._twin_timeout_s = twin_timeout_s
        self._places = places
        self._exchanges: dict[str, _Exchange] = {}
        self._running = 0
        self._arrivals: deque[tuple[float, str]] = deque(maxlen=ARRIVALS)

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def running(self) -> int:
        """Number of running exchanges."""
        return self._running

    @property
    def tells_serve(self) -> bool:
        """Whether a request may arrive without a reservation, and is counted nevertheless."""
        return self._places is not None

    async def hold(self, ticket: str) -> None:
        """Return when the ticket's HTTP exchange has ended, or did not start in time."""
        exchange = self._exchanges.setdefault(ticket, _Exchange())
        exchange.holds += 1
        self._give_back(ticket, exchange)  # the call of `hold` has the place now
        try:
            async with asyncio.timeout(self._twin_timeout_s):
                await exchange.arrived.wait()
            await exchange.left.wait()
        except TimeoutError:
            return
        finally:
            exchange.holds -= 1
            if not exchange.holds and self._exchanges.get(ticket) is exchange:
                del self._exchanges[ticket]

    def arrive(self, ticket: str, reserved: bool, if_room: bool = False) -> bool:
        """Return whether the exchange may start: below the limit, and always if `reserved`, except
        with `if_room`.

        Not `reserved`, but `if_room`: its slot is taken here. Slots that Ray Serve has reserved for
        others count as taken.
        """
        places = self._places if if_room and not reserved else None
        taken = max(self._running, places.taken) if places else self._running
        if taken >= self.limit and (if_room or not reserved):
            return False
        self._running += 1
        self._arrivals.append((time.monotonic(), ticket))
        exchange = self._exchanges.setdefault(ticket, _Exchange())
        exchange.arrived.set()
        if places and not exchange.holds:
            exchange.has_place = True
            places.take(ticket)
        return True

    def lately_arrived(self) -> tuple[str, ...]:
        """Tickets of the exchanges that started in the last ARRIVED_S."""
        since = time.monotonic() - ARRIVED_S
        while self._arrivals and self._arrivals[0][0] < since:
            self._arrivals.popleft()
        return tuple(ticket for _, ticket in self._arrivals)

    def leave(self, ticket: str) -> None:
        self._running -= 1
        if exchange := self._exchanges.get(ticket):
            exchange.left.set()
            self._give_back(ticket, exchange)
            loop = asyncio.get_running_loop()
            loop.call_later(self._twin_timeout_s, self._exchanges.pop, ticket, None)

    def _give_back(self, ticket: str, exchange: _Exchange) -> None:
        if exchange.has_place and self._places is not None:
            exchange.has_place = False
            self._places.give_back(ticket)


class TicketGate:
    """ASGI: admits requests with a pass to this engine, and reports each exchange to `Tickets`.

    `url`, to be set: the address that gateways know; until then no request is admitted.
    """

    def __init__(self, app: ASGIApp, tickets: Tickets, secret: str) -> None:
        self._app = app
        self._tickets = tickets
        self._passes = EnginePasses(secret)
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # no gateway opens one, but vLLM's application accepts WebSockets
            await WebSocketClose(POLICY_VIOLATION)(scope, receive, send)
            return
        headers = dict(scope["headers"])
        ticket = headers.get(TICKET_HEADER.encode(), b"").decode("latin-1")
        given = headers.get(PASS_HEADER.encode(), b"")
        if not (self.url and self._passes.opens(given, self.url, ticket, scope["path"])):
            message = "Only the fleet's gateways may use this port. Send the request to a gateway."
            await _refuse(403, message, "not_a_gateway")(scope, receive, send)
            return
        if not ticket:
            await self._app(scope, receive, send)
            return
        reservation = headers.get(RESERVED_HEADER.encode())
        if_room = UNRESERVED_HEADER.encode() in headers or reservation == IF_ROOM.encode()
        if not self._tickets.arrive(ticket, reservation is not None, if_room):
            message = "The replica is full. Send the request again once it has a reservation."
            await _refuse(NOT_RESERVED, message, "not_reserved")(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._tickets.leave(ticket)


def _refuse(status: int, message: str, code: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status)
