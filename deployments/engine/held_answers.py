"""Streams that outlive their gateway for some time, in the replica that generates them.

A gateway requests it with the request (`x-antefix-hold`: for how many seconds). If its connection
breaks, the engine continues. Any gateway that names the stream's ticket in time gets the same bytes
from the beginning, and the rest. A gateway that leaves on purpose reports it, and the engine stops
at once. There is one reader at a time: a later one replaces the earlier one, which gets a notice.
Each replays the whole stream, so a stream can be taken over at most MOST_TAKEOVERS times a minute.

Only streams are retained, in memory, for the requested seconds without a reader and after their
end, and at most MOST_BYTES of them together. Beyond that the oldest ended stream is dropped first,
then the growing one. A dropped stream continues and ends with its reader, like streams without such
a request.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.wire.answer_log import END, EventCounter
from deployments.wire.headers import (
    EVENTS_HEADER,
    HELD_HEADER,
    HELD_PATH,
    HOLD_HEADER,
    READER_HEADER,
    TAKEN_OVER_COMMENT,
    TICKET_HEADER,
)

MOST_BYTES = 128 * 2**20
# Rough cost of a stream in addition to its bytes, so that many small ones also count.
OWN_BYTES = 4096
# Limit for telling a reader that has stopped reading that another one has its stream.
TAKEOVER_NOTICE_S = 1.0

# Limit of takeovers of one stream, within this time.
MOST_TAKEOVERS, TAKEOVERS_S = 10, 60.0


class HeldAnswers:
    """ASGI: the application's streams, retained on request. `held_bytes`: the size of all of
    them."""

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._streams: dict[str, _Stream] = {}  # by ticket, oldest first
        self._is_closed = False
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._streams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == HELD_PATH:
            await self._visited(scope, receive, send)
            return
        hold_s, ticket = _header(scope, HOLD_HEADER), _header(scope, TICKET_HEADER)
        if not hold_s or self._is_closed or ticket in self._streams:
            await self._app(scope, receive, send)
            return
        stream = _Stream(self, ticket, _header(scope, "x-request-id"), float(hold_s))
        self._streams[ticket] = stream
        self.grown(stream, OWN_BYTES)
        reading = stream.begin_reading(stream.ticket, send)
        try:
            await self._app(scope, stream.without_disconnects(receive), stream.send)
        finally:
            stream.end()
            await asyncio.wait({reading})

    def close(self) -> None:
        """End streams without a reader, because no reader can arrive any more; the others end with
        their reader."""
        self._is_closed = True
        for stream in list(self._streams.values()):
            stream.forget()

    def grown(self, stream: _Stream, size: int) -> None:
        """Record that a stream has grown by `size` bytes."""
        stream.size += size
        self.held_bytes += size
        while self.held_bytes > self._most_bytes and stream.is_kept:
            ended = (one for one in self._streams.values() if one.has_ended)
            next(ended, stream).forget()

    def forget(self, stream: _Stream) -> None:
        """Drop a stream: it cannot be read again."""
        if self._streams.get(stream.ticket) is stream:
            del self._streams[stream.ticket]
            self.held_bytes -= stream.size

    async def _visited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a gateway that wants to read a stream, or to stop reading it."""
        stream = self._streams.get(_header(scope, HELD_HEADER))
        reader = _header(scope, READER_HEADER)
        if scope["method"] == "DELETE":
            if stream is not None and stream.reader == reader:
                stream.abandon()
            await Response(status_code=204)(scope, receive, send)
        elif stream is None or not stream.has_begun:
            await _refused(404, "unknown_stream")(scope, receive, send)
        elif int(_header(scope, EVENTS_HEADER)) > stream.events:
            await _refused(409, "too_many_events")(scope, receive, send)
        elif wait_s := stream.next_takeover_s():
            headers = {"retry-after": str(math.ceil(wait_s))}
            await _refused(429, "too_many_takeovers", headers)(scope, receive, send)
        else:
            stream.taken_over()
            reading = stream.begin_reading(reader, send)
            watching = asyncio.create_task(stream.watch(receive, reader))
            try:
                await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watching.cancel()
                reading.cancel()
                stream.reader_left(reader)


class _Stream:
    """One stream, between its application and its reader.

    `reader`: the last one. `is_kept` until it is dropped; then bytes that its reader has taken are
    freed, and the application waits for its reader.
    """

    def __init__(self, store: HeldAnswers, ticket: str, request_id: str, hold_s: float) -> None:
        self.ticket = ticket
        self._request_id = request_id
        self.reader = ""
        self.size = 0
        self.is_kept = True
        self.has_ended = False
        self._store = store
        self._hold_s = hold_s
        self._is_read = False
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._counter = EventCounter()
        self._takeovers: deque[float] = deque(maxlen=MOST_TAKEOVERS)
        self._taken = 0  # parts that the reader has received
        self._is_whole = False
        self._reading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._news, self._room = asyncio.Event(), asyncio.Event()
        # no reader is left, and none may follow
        self._abandoned = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        return self._start is not None

    @property
    def events(self) -> int:
        """Number of whole events so far."""
        return self._counter.events

    def next_takeover_s(self) -> float:
        """Return the seconds until it may be taken over; 0: now."""
        if len(self._takeovers) < MOST_TAKEOVERS:
            return 0.0
        return max(0.0, self._takeovers[0] + TAKEOVERS_S - asyncio.get_running_loop().time())

    def taken_over(self) -> None:
        self._takeovers.append(asyncio.get_running_loop().time())

    def without_disconnects(self, receive: Receive) -> Receive:
        """Return the request for the application, without the disconnection of a reader."""
        has_body = False

        async def receive_request() -> Message:
            nonlocal has_body
            if not has_body:
                message = await receive()
                has_body = not message.get("more_body", False)
                if message["type"] == "http.disconnect":
                    self.abandon()
                elif has_body:
                    watch = self.watch(receive, self.ticket)
                    self._watching = asyncio.create_task(watch)
                return message
            await self._abandoned.wait()
            return {"type": "http.disconnect"}

        return receive_request

    async def watch(self, receive: Receive, reader: str) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.reader_left(reader)

    async def send(self, message: Message) -> None:
        """Receive the application's next message."""
        if message["type"] == "http.response.start":
            if not _is_event_stream(message):
                self.forget()
            own = [(HOLD_HEADER.encode(), self._request_id.encode())] if self.is_kept else []
            self._start = {**message, "headers": [*message.get("headers", []), *own]}
        elif body := message.get("body", b""):
            self._parts.append(body)
            self._counter.add(body)
            if self.is_kept:
                self._store.grown(self, len(body))
        self._is_whole = message["type"] == "http.response.body" and not message.get("more_body")
        self._news.set()
        while not self.is_kept and self._parts and not self._abandoned.is_set():
            self._room.clear()
            await self._room.wait()

    def begin_reading(self, reader: str, send: Send) -> asyncio.Task[None]:
        """Start to read from the beginning. The current reader gets a notice, and stops."""
        if self._reading is not None and not self._reading.done():
            asyncio.get_running_loop().call_later(TAKEOVER_NOTICE_S, self._reading.cancel)
        self.reader, self._is_read, self._taken = reader, True, 0
        self._news.set()
        self._reading = asyncio.create_task(self._read(reader, send))
        return self._reading

    async def _read(self, reader: str, send: Send) -> None:
        has_started = False
        while self.reader == reader:
            self._news.clear()
            if self._start is None and not self.has_ended:
                await self._news.wait()
            elif self._start is None:
                return
            elif not has_started:
                has_started = True
                await send(self._start)
            elif self._taken < len(self._parts):
                await send({**_PART, "body": self._next()})
                self._room.set()
            elif self._is_whole or self.has_ended:
                if self._is_whole:  # otherwise its connection is cut, as without this class
                    await send({**_PART, "more_body": False})
                return
            else:
                await self._news.wait()
        await send({**_PART, "body": TAKEN_OVER_COMMENT + END, "more_body": False})

    def _next(self) -> bytes:
        """Return the bytes that its reader has not taken."""
        came, self._taken = b"".join(self._parts[self._taken :]), len(self._parts)
        if not self.is_kept:
            self._parts.clear()
            self._taken = 0
        return came

    def reader_left(self, reader: str) -> None:
        """Record that the reader's connection broke, or that it has all: another may follow."""
        if self.reader != reader or self.has_ended or self._abandoned.is_set():
            return
        self._is_read = False
        if self.is_kept and self.has_begun:
            loop = asyncio.get_running_loop()
            loop.call_later(self._hold_s, self._unless_another_reads, reader)
        else:
            self.abandon()

    def _unless_another_reads(self, reader: str) -> None:
        if self.reader == reader and not self.has_ended:
            self.abandon()

    def abandon(self) -> None:
        """Abandon the stream: the application receives a disconnection."""
        self.forget()
        self._abandoned.set()

    def end(self) -> None:
        """Record that the application has returned; its stream may still be read for some time."""
        self.has_ended = True
        if self._watching is not None:
            self._watching.cancel()
        self._news.set()
        if self.is_kept:
            asyncio.get_running_loop().call_later(self._hold_s, self.forget)

    def forget(self) -> None:
        """Stop retaining it; it ends with its reader."""
        self._store.forget(self)
        if self.is_kept:
            self.is_kept = False
            del self._parts[: self._taken]
            self._taken = 0
        if not self._is_read:
            self._abandoned.set()
        self._room.set()


_PART: Message = {"type": "http.response.body", "body": b"", "more_body": True}


def _refused(status: int, code: str, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps({"error": {"message": "", "type": "", "param": None, "code": code}})
    return Response(body, status, headers, media_type="application/json")


def _header(scope: Scope, name: str) -> str:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == wanted), "")


def _is_event_stream(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    return bool(headers.get(b"content-type", b"").startswith(b"text/event-stream"))
