"""Requests as bytes, as wrong as they like, and what is at fault in what is answered to them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, cast

from tests.sentences import assert_sentences

# Longer than any of a gateway's limits of time for input, on however busy a machine.
ANSWERED_WITHIN_S = 60.0
# Messages with these are an engine's own.
OF_ENGINES = ("invalid_value", "context_length_exceeded")


@dataclass(frozen=True)
class Port:
    """`key`: what opens it. `tells_errors`: in OpenAI's shape. `at_once`: what it has room for."""

    host: str
    port: int
    key: str = field(default="", repr=False)
    tells_errors: bool = True
    at_once: int = 64

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        host = f"{self.host}:{self.port}".encode()
        key = [(b"authorization", b"Bearer " + self.key.encode())] if self.key else []
        return [(b"host", host), *key]


@dataclass(frozen=True)
class WrongRequest:
    """Framed as it should be, so that there must be an answer."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    def sent_to(self, port: Port) -> bytes:
        named = {name.lower() for name, _ in self.headers}
        own = [header for header in port.headers if header[0] not in named]
        last = [(b"connection", b"close")]
        if self.body or self.method == "POST":
            last.append((b"content-length", b"%d" % len(self.body)))
        headers = [*own, *self.headers, *last]
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        start = self.method.encode() + b" " + self.target + b" HTTP/1.1\r\n"
        return b"".join([start, *lines, b"\r\n", self.body])


def json_request(path: str, body: Any) -> WrongRequest:
    """`body`: bytes go as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return WrongRequest("POST", path.encode(), ((b"content-type", b"application/json"),), data)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One of a client that sends what it likes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        """A server that has refused need not read on."""
        with contextlib.suppress(ConnectionError):
            await self._loop.sock_sendall(self._sock, data)

    async def answer(self, method: str = "GET") -> Answer | None:
        """The first whole answer, or None where it was closed without."""
        told = b""
        with contextlib.suppress(ConnectionError):
            while piece := await self._loop.sock_recv(self._sock, 1 << 20):
                told += piece
                if (answer := _answer_in(told, method, ended=False)) is not None:
                    return answer
        return _answer_in(told, method, ended=True)

    async def rest(self) -> bytes:
        """All until it is closed."""
        told = []
        with contextlib.suppress(ConnectionError):
            while piece := await self._loop.sock_recv(self._sock, 1 << 20):
                told.append(piece)
        return b"".join(told)

    def end_sending(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()


@asynccontextmanager
async def connected(port: Port, receive_bytes: int | None = None) -> AsyncIterator[Connection]:
    """`receive_bytes`: how much the kernel takes for a client that does not read."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (port.host, port.port))
        yield Connection(sock)


async def faults_of(port: Port, requests: Iterable[WrongRequest]) -> list[str]:
    """Of what is answered to them, sent together."""
    asked = list(requests)
    found = await asyncio.gather(*(_fault_of(port, request) for request in asked))
    return [
        f"{fault}: {request}"[:3000] for fault, request in zip(found, asked, strict=True) if fault
    ]


async def _fault_of(port: Port, request: WrongRequest) -> str | None:
    try:
        async with asyncio.timeout(ANSWERED_WITHIN_S), connected(port) as connection:
            await connection.send(request.sent_to(port))
            answer = await connection.answer(request.method)
    except TimeoutError:
        return f"not answered within {ANSWERED_WITHIN_S:g} s"
    return "closed unanswered" if answer is None else fault_in(answer, port, request.method)


def fault_in(answer: Answer, port: Port, method: str = "GET") -> str | None:
    """None where a client can be content: it got an answer, or an error that names its mistake."""
    text = answer.body.decode(errors="replace")
    if answer.status >= 500:
        return f"{answer.status}: {text[:500]}"
    if "Traceback" in text or 'File "' in text:
        return f"internals in an answer: {text[:500]}"
    if answer.status >= 400 and port.tells_errors and method != "HEAD":
        return _fault_in_error(text)
    for line in text.splitlines():
        if line.startswith("data: {") and '"error"' in line:
            error = json.loads(line[6:]).get("error")
            code = error.get("code") if isinstance(error, dict) else None
            if isinstance(error, dict) and (
                error.get("type") == "server_error" or (isinstance(code, int) and code >= 500)
            ):
                return f"in a stream: {line[:500]}"
    return None


def _fault_in_error(text: str) -> str | None:
    try:
        error = json.loads(text)["error"]
        assert error.keys() == {"message", "type", "param", "code"}, "another shape"
        if error["code"] in OF_ENGINES:
            assert error["message"].strip(), "says nothing"
        else:
            assert_sentences(error["message"])
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as why:
        return f"an error in the wrong form ({why!r}): {text[:500]}"
    return None


class _Told:
    """What HTTPResponse takes for a socket."""

    def __init__(self, told: bytes) -> None:
        self._told = told

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._told)


def _answer_in(told: bytes, method: str, ended: bool) -> Answer | None:
    """None while the first answer is not whole; of a connection that has ended, what there is."""
    if b"\r\n\r\n" not in told:
        return None
    response = HTTPResponse(cast(socket.socket, _Told(told)), method=method)
    try:
        response.begin()
        until_closed = response.length is None and not response.chunked and method != "HEAD"
        if until_closed and not ended:
            return None
        body = response.read()
    except HTTPException:
        if not ended:
            return None
        body = b""
    return Answer(response.status, dict(response.getheaders()), body)
