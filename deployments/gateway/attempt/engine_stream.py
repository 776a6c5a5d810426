"""An engine's stream, handed over as it is read from its connection.

A gateway passes on every token of every answer. Through aiohttp's iterators each wakes a task,
through a future and the loop's queue, and asks the parser again whether reading was paused; here
the one who reads takes it in the same call. Whatever has to wait goes the usual way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler


class _Connection(ResponseHandler):
    """`on_data` is called after each read, and in the end."""

    on_data: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.on_data is not None:
            self.on_data()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.on_data is not None:
            self.on_data()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # aiohttp asks after every read
        # not every aiohttp 3.14 has the second
        if self._reading_paused or getattr(self, "_buffer_paused", False):
            super().resume_reading(resume_parser)


def connector(**options: Any) -> aiohttp.TCPConnector:
    """As aiohttp's, whose answers `pieces` reads."""
    made = aiohttp.TCPConnector(**options)
    # aiohttp 3 has no public way to say which protocol its connections have
    cast(Any, made)._factory = partial(_Connection, loop=asyncio.get_running_loop())
    return made


async def pieces(
    answer: aiohttp.ClientResponse, take: Callable[[bytes], bool]
) -> AsyncIterator[bytes]:
    """Of its body, as they come, but those that `take` takes at once: it says whether it did.

    What `take` raises is raised here, as are aiohttp's ClientErrors.
    """
    content = answer.content
    while True:
        if piece := content.read_nowait():
            if not take(piece):
                yield piece
        elif content.at_eof():
            return
        elif rest := await _not_taken(answer, take):
            yield rest


async def _not_taken(answer: aiohttp.ClientResponse, take: Callable[[bytes], bool]) -> bytes:
    """The next piece that `take` leaves; empty at the end."""
    content, loop = answer.content, asyncio.get_running_loop()
    left: asyncio.Future[bytes] = loop.create_future()
    assert answer.connection is not None  # before its end
    connection = answer.connection.protocol
    assert isinstance(connection, _Connection)

    def on_data() -> None:
        if left.done():
            return
        try:
            piece = content.read_nowait()
            if piece and take(piece):
                piece = b""
            if piece or content.at_eof():
                left.set_result(piece)
        except Exception as error:
            left.set_exception(error)

    connection.on_data = on_data
    try:
        return await left
    finally:
        # another answer may have the connection by now
        if connection.on_data is on_data:
            connection.on_data = None
