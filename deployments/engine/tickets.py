"""Serve requests that stay open while their HTTP twin streams.

A gateway reserves a place on a replica through Ray Serve, dispatches `hold(ticket)` into it
and sends the request itself, with the same ticket, straight to the replica's HTTP server.
`hold` returns when that HTTP exchange ends, so Ray Serve counts, queues and drains exactly
the requests that run, while no token passes through its object streams. If a gateway dies,
its connections break and the reservations end by themselves.

To save the reservation's round trip a gateway may send the request at the same time. The
gate lets it in only while the replica is below `max_ongoing_requests`; else it answers
`NOT_RESERVED` and the gateway comes back when it has the reservation.
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

from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import NOT_RESERVED, PASS_HEADER, RESERVED_HEADER, TICKET_HEADER

# How long one twin waits for the other: a gateway sends both within milliseconds.
TWIN_TIMEOUT_S = 30.0
# Long enough for every gateway to read a snapshot that names an arrival.
ARRIVED_S = 1.0
ARRIVALS = 1024


@dataclass
class _Exchange:
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)


class Tickets:
    """The exchanges of one replica, by ticket. All methods run in one event loop."""

    def __init__(self, limit: int, twin_timeout_s: float = TWIN_TIMEOUT_S) -> None:
        self._limit = limit
        self._twin_timeout_s = twin_timeout_s
        self._exchanges: dict[str, _Exchange] = {}
        self._running = 0
        self._arrivals: deque[tuple[float, str]] = deque(maxlen=ARRIVALS)

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def running(self) -> int:
        """Exchanges under way."""
        return self._running

    async def hold(self, ticket: str) -> None:
        """Return when the ticket's HTTP exchange has ended, or never began in time."""
        exchange = self._exchanges.setdefault(ticket, _Exchange())
        try:
            async with asyncio.timeout(self._twin_timeout_s):
                await exchange.arrived.wait()
            await exchange.left.wait()
        except TimeoutError:
            return
        finally:
            self._exchanges.pop(ticket, None)

    def arrive(self, ticket: str, reserved: bool) -> bool:
        """Whether the exchange may begin: reserved: always; else below the limit."""
        if not reserved and self._running >= self._limit:
            return False
        self._running += 1
        self._arrivals.append((time.monotonic(), ticket))
        self._exchanges.setdefault(ticket, _Exchange()).arrived.set()
        return True

    def lately_arrived(self) -> tuple[str, ...]:
        """Tickets of the exchanges that began in the last ARRIVED_S."""
        since = time.monotonic() - ARRIVED_S
        while self._arrivals and self._arrivals[0][0] < since:
            self._arrivals.popleft()
        return tuple(ticket for _, ticket in self._arrivals)

    def leave(self, ticket: str) -> None:
        self._running -= 1
        if exchange := self._exchanges.get(ticket):
            exchange.left.set()
            loop = asyncio.get_running_loop()
            loop.call_later(self._twin_timeout_s, self._exchanges.pop, ticket, None)


class TicketGate:
    """ASGI: lets in who has a pass to this engine, and tells `Tickets` of each exchange.

    `url`, to be set: the address that gateways know; until then nobody is let in.
    """

    def __init__(self, app: ASGIApp, tickets: Tickets, secret: str) -> None:
        self._app = app
        self._tickets = tickets
        self._passes = EnginePasses(secret)
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # no gateway sends one, and vLLM's application has doors for WebSockets
            await WebSocketClose(POLICY_VIOLATION)(scope, receive, send)
            return
        headers = dict(scope["headers"])
        ticket = headers.get(TICKET_HEADER.encode(), b"").decode("latin-1")
        given = headers.get(PASS_HEADER.encode(), b"")
        if not (self.url and self._passes.opens(given, self.url, ticket)):
            message = "This port is for the fleet's gateways. Send requests to a gateway."
            await _refuse(403, message, "not_a_gateway")(scope, receive, send)
            return
        if not ticket:
            await self._app(scope, receive, send)
            return
        if not self._tickets.arrive(ticket, RESERVED_HEADER.encode() in headers):
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
