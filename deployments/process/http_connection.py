"""Limits of one HTTP connection, in size and time, before the client is authenticated.

uvicorn's parser accepts headers without limit, and waits for them, and for a body, forever. Here a
client that exceeds a limit gets an error in OpenAI's form and the connection ends; docs/security.md
lists the limits. The cost for a request is one reading of the clock: times are checked once a
second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from typing import Any

import httptools
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from deployments.process.connection_limits import ConnectionLimits
from deployments.process.connection_refusals import (
    NOT_HTTP,
    ConnectionRefusal,
    ambiguous,
    body_too_slow,
    head_timeout,
    head_too_large,
    too_many_connections,
    too_many_headers,
    too_many_pipelined,
)
from deployments.process.pieces import EXTENSION, ChunkedPieces
from deployments.process.unchunked import unchunked

logger = logging.getLogger(__name__)

COMPLAINT_PERIOD_S = 60.0

# Refusals of this process, by the code of the answer.
refused: Counter[str] = Counter()


class BoundedConnection(HttpToolsProtocol):
    """One connection of a client, from its first byte to its last."""

    def __init__(
        self,
        limits: ConnectionLimits,
        idle: dict[BoundedConnection, None],
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        # this server's connections between two requests, the one idle for longest first
        self._idle = idle
        self._look_timer: asyncio.TimerHandle
        self._refused_at: float | None = None
        self._refusal: ConnectionRefusal | None = None
        # start of the wait for a head or a body
        self._head_since: float | None = None
        self._body_since: float | None = None
        self._body_bytes = 0
        # size of the received body at the latest looks, oldest first
        self._body_looks: deque[tuple[float, int]] = deque()
        # bytes read since the parser last passed on something that it had kept
        self._kept_bytes = 0
        self._untaken_bytes = 0
        self._untaken_since = 0.0
        # `cycle` is the last request that was read, which may wait for this one's answer
        self._answering: RequestResponseCycle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it is between two requests."""
        return self.timeout_keep_alive_task is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since = self.loop.time()
        self._look_later()
        if len(self.connections) > self._limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        self._look_timer.cancel()
        self._break_off()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused_at is not None:
            return
        self._kept_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_as_plain(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._refusal or NOT_HTTP)
        else:
            if self._kept_bytes > self._limits.head_bytes:
                self._refuse(head_too_large(self._limits.head_bytes))
            elif self.headers and len(self.headers) > self._limits.headers:
                self._refuse(too_many_headers(self._limits.headers))

    def _read_as_plain(self, rest: bytes) -> None:
        """The request also requests another protocol: parse it again without that, and its body
        too."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(NOT_HTTP)
            return
        version = self.parser.get_http_version().encode()
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        head = b"\r\n".join([b"%s %s HTTP/%s" % (method, self.url, version), *lines])
        self.data_received(head + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # not earlier, so that a client that only sends empty lines does not keep a connection
        self._unset_keepalive_if_required()
        self._kept_bytes = 0
        if self._head_since is None:
            self._head_since = self.loop.time()

    def on_headers_complete(self) -> None:
        limits = self._limits
        size = len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])
        if size > limits.head_bytes:
            self._refusal = head_too_large(limits.head_bytes)
        elif len(self.headers) > limits.headers:
            self._refusal = too_many_headers(limits.headers)
        elif len(self.pipeline) >= limits.pipelined:
            self._refusal = too_many_pipelined(limits.pipelined)
        else:
            self._refusal = ambiguous(self.parser.get_http_version(), self.headers)
        if self._refusal is not None:
            raise ValueError(self._refusal.code)  # ends the parser's run over the received bytes
        if self.parser.should_upgrade():
            return
        # it was set again if an answer ended after this head had started
        self._unset_keepalive_if_required()
        self._head_since = None
        self._await_body(self.loop.time())
        self._kept_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._kept_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._body_since = None
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._answering = cycle
        cycle.scope["extensions"] = {EXTENSION: {"pieces": ChunkedPieces(cycle)}}
        if cycle.scope["http_version"] == "1.0":
            app = unchunked(app, cycle)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_idle:
            self._idle[self] = None

    def _unset_keepalive_if_required(self) -> None:
        super()._unset_keepalive_if_required()
        self._idle.pop(self, None)

    def _break_off(self) -> bool:
        """Report a disconnected client to the application. Return whether nothing of its answer was
        sent."""
        cycle = self._answering
        if cycle is None or cycle.response_complete:
            return True
        cycle.disconnected = True
        cycle.message_event.set()
        return not cycle.response_started and not self.pipeline

    def _look_later(self) -> None:
        self._look_timer = self.loop.call_later(self._limits.look_period_s, self._look)

    def _look(self) -> None:
        """Check times once a second while the connection is open."""
        limits, now = self._limits, self.loop.time()
        late_s = now - self._look_timer.when()
        self._look_later()
        if late_s > limits.look_period_s:
            return  # the process was blocked, and may have unread data
        if self.transport.is_closing():
            self._abort_untaken(now)
        elif self._refused_at is not None:
            if now - self._refused_at >= limits.refused_s:
                self.transport.close()
        elif self._answering is None or self._answering.response_complete:
            if self._head_since is not None and now - self._head_since >= limits.head_s:
                self._give_up_head()
        elif self._body_since is not None:
            if self.flow.read_paused or self.cycle.waiting_for_100_continue:
                self._await_body(now)  # the client waits for this process
            elif self._is_too_slow(now, self._body_since):
                self._refuse(body_too_slow(limits.body_grace_s, limits.body_bytes_per_s))

    def _await_body(self, now: float) -> None:
        self._body_since, self._body_bytes = now, 0
        self._body_looks.clear()

    def _is_too_slow(self, now: float, since: float) -> bool:
        """Return whether the last `body_grace_s` brought too few bytes of the body awaited since
        `since`."""
        limits, looks = self._limits, self._body_looks
        looks.append((now, self._body_bytes))
        began = now - limits.body_grace_s
        while len(looks) > 1 and looks[1][0] <= began:
            looks.popleft()
        before = looks[0][1] if looks[0][0] <= began else 0
        least_bytes = limits.body_grace_s * limits.body_bytes_per_s
        return since <= began and self._body_bytes - before < least_bytes

    def _give_up_head(self) -> None:
        if self.scope is None:
            self.transport.close()  # no request was started: browsers connect before they need to
        else:
            self._refuse(head_timeout(self._limits.head_s))

    def _abort_untaken(self, now: float) -> None:
        """Abort a closing connection whose client does not take the remaining bytes."""
        untaken_bytes = self.transport.get_write_buffer_size()
        if untaken_bytes != self._untaken_bytes:
            self._untaken_bytes, self._untaken_since = untaken_bytes, now
        elif now - self._untaken_since >= self._limits.untaken_s:
            self.transport.abort()

    def _make_room(self) -> None:
        while self._idle:
            longest = next(iter(self._idle))
            del self._idle[longest]
            if longest.is_idle:
                longest.transport.close()
                return
        self._refuse(too_many_connections(self._limits.connections))
        self.transport.close()

    def _refuse(self, refusal: ConnectionRefusal) -> None:
        """Answer, unless another answer has started, and stop reading."""
        refused[refusal.code] += 1
        _complaints.tell(refusal)
        self._refused_at = self.loop.time()
        self._unset_keepalive_if_required()
        if not self._break_off():
            self.transport.close()
            return
        self.flow.resume_reading()
        headers = list(self.server_state.default_headers)
        if self._answering and (named := self._answering.scope["state"].get("request_id")):
            headers.append((b"x-request-id", named.encode()))
        self.transport.write(refusal.answer(headers))


class _Complaints:
    """Log one line per minute for each cause, so that unknown clients cannot fill the log."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def tell(self, refusal: ConnectionRefusal) -> None:
        now, code = time.monotonic(), refusal.code
        self._untold[code] = self._untold.get(code, 0) + 1
        if now - self._told_at.get(code, float("-inf")) >= COMPLAINT_PERIOD_S:
            self._told_at[code], number = now, self._untold.pop(code)
            logger.warning("rejected %d connections (%s): %s", number, code, refusal.message)


_complaints = _Complaints()
