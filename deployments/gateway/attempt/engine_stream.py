"""An engine's stream, consumed in the call that reads it from the connection.

A gateway forwards every token of every answer. With aiohttp's iterators, each token wakes a task
through a future and the loop's queue, and checks again whether the parser paused reading. Here, a
callback takes each piece as it is read. Pieces that it cannot take at once wake the task as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler


class _Connection(ResponseHandler):
    """Calls `on_data` after each read, and when the connection is lost."""

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
        # aiohttp calls this after every read; not every aiohttp 3.14 has `_buffer_paused`
        if self._reading_paused or getattr(self, "_buffer_paused", False):
            super().resume_reading(resume_parser)


def connector(**options: Any) -> aiohttp.TCPConnector:
    """Return aiohttp's connector, with connections that `pieces` can read from."""
    made = aiohttp.TCPConnector(**options)
    # aiohttp 3 has no public way to set the protocol of its connections
    cast(Any, made)._factory = partial(_Connection, loop=asyncio.get_running_loop())
    return made


async def pieces(
    answer: aiohttp.ClientResponse, take: Callable[[bytes], bool]
) -> AsyncIterator[bytes]:
    """Yield the pieces of a body that `take` does not take, as they arrive. `take` returns whether
    it took a piece.

    Raises aiohttp's ClientError when the connection fails, and the errors of `take`.
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
    """Return the next piece that `take` does not take; empty at the end."""
    content, loop = answer.content, asyncio.get_running_loop()
    left: asyncio.Future[bytes] = loop.create_future()
    assert answer.connection is not None  # it is, until the end of the body
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
        # another answer may use the connection by now
        if connection.on_data is on_data:
            connection.on_data = None
