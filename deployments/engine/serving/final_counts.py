"""The token counts of an exchange, for a gateway that leaves before its end.

    GET /antefix/tokens?ticket=...   waits until the engine has stopped, then answers with the
                                     counts in headers (`deployments.wire.headers`)

A gateway first closes the exchange's connection, or its stream: this request stops nothing. An
unknown ticket has no tokens, and neither has one whose exchange ended more than KEPT_S ago.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.wire.confirmation import Confirmation

# A gateway asks as soon as its client has left.
KEPT_S = 10.0


@dataclass
class _Counted:
    confirmation: Confirmation
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class ExchangeCounts:
    """ASGI: the counts of one replica's exchanges, by ticket."""

    def __init__(self) -> None:
        self._exchanges: dict[str, _Counted] = {}

    @contextmanager
    def of(self, ticket: str, confirmation: Confirmation) -> Iterator[None]:
        """Count an exchange until the application returns; without a ticket nothing is stored."""
        if not ticket:
            yield
            return
        self._exchanges[ticket] = exchange = _Counted(confirmation)
        try:
            yield
        finally:
            exchange.ended.set()
            loop = asyncio.get_running_loop()
            loop.call_later(KEPT_S, self._exchanges.pop, ticket, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        exchange = self._exchanges.get(asked.get("ticket", [""])[0])
        confirmation = Confirmation()
        if exchange is not None:
            confirmation = exchange.confirmation
            await exchange.ended.wait()
            await confirmation.idle.wait()
        await Response(headers=confirmation.final_headers())(scope, receive, send)
