"""The pieces of an answer, straight to its connection: an ASGI extension of our HTTP server.

Through ASGI each would be a message that four layers look at, in a coroutine each, to pass it on
as it is. Headers and the end go that way, and so does a piece that has to wait for its client.
"""

from __future__ import annotations

from typing import Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "antefix.pieces"


class AnswerPieces(Protocol):
    """Of one answer."""

    @property
    def take_one(self) -> bool:
        """Whether `write` may be called now: the answer has begun, and its client keeps up."""

    def write(self, piece: bytes) -> None:
        """It leaves at once; it must not be empty."""


def pieces_of(scope: Scope) -> AnswerPieces:
    """What its server offers; on another server none is taken."""
    offered: AnswerPieces = scope.get("extensions", {}).get(EXTENSION, {}).get("pieces", _NONE)
    return offered


class ChunkedPieces:
    """Of an answer that uvicorn sends in chunks, since it has no length."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow

    @property
    def take_one(self) -> bool:
        cycle = self._cycle
        # False of an answer with a length, None before its headers are out
        return (
            cycle.chunked_encoding is True
            and not self._flow.write_paused
            and not cycle.disconnected
            and not cycle.response_complete
        )

    def write(self, piece: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


class _NoPieces:
    take_one = False

    def write(self, piece: bytes) -> None:
        raise AssertionError("none is taken")


_NONE = _NoPieces()
