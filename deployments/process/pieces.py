"""Send the chunks of an answer directly to its connection: an ASGI extension of this HTTP server.

Through ASGI each chunk would be a message that passes through four layers, with a coroutine each.
Headers and the end use ASGI, and so does a chunk that has to wait for its client.
"""

from __future__ import annotations

from typing import Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "antefix.pieces"


class AnswerPieces(Protocol):
    """The writer of one answer."""

    @property
    def take_one(self) -> bool:
        """Return whether `write` may be called now: the answer has started, and its client keeps
        up."""

    def write(self, piece: bytes) -> None:
        """Send a piece at once; it must not be empty."""


def pieces_of(scope: Scope) -> AnswerPieces:
    """Return the writer that the server offers; on another server it accepts nothing."""
    offered: AnswerPieces = scope.get("extensions", {}).get(EXTENSION, {}).get("pieces", _NONE)
    return offered


class ChunkedPieces:
    """The writer of an answer that uvicorn sends in chunks, because it has no length."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow

    @property
    def take_one(self) -> bool:
        cycle = self._cycle
        # False for an answer with a length, None before its headers are sent
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
