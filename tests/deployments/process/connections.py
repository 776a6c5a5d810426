"""A real server, and clients that speak to it byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.process.connection_limits import ConnectionLimits
from deployments.process.http_connection import BoundedConnection
from deployments.process.http_server import HttpServer
from tests.sentences import assert_sentences
from tests.waiting import until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\n"
# A limit that must be passed is short; where it must not be, `Served.later` moves clocks instead.
LIMITS = ConnectionLimits(connections=100, look_period_s=0.02, refused_s=0.2)
Told = tuple[int, dict[str, str], dict[str, object]]


class Served:
    """Where the server is, what it was asked, and how many of the askers left before the end."""

    def __init__(self, server: HttpServer, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.state = server.state
        self.url = f"http://{host}:{port}"
        self.asked: list[bytes] = []
        self.left = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    @property
    def only(self) -> BoundedConnection:
        (connection,) = self.state.connections
        assert isinstance(connection, BoundedConnection)
        return connection

    async def later(self, by_s: float) -> None:
        """Its only connection has waited that much longer for any input."""
        connection = self.only
        for clock in ("_head_since", "_body_since"):
            if (since := getattr(connection, clock)) is not None:
                setattr(connection, clock, since - by_s)
        looks = [connection._look_timer]
        while len(looks) < 3:
            await until(lambda: connection._look_timer is not looks[-1], 20)
            looks.append(connection._look_timer)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await JSONResponse({"bytes": len(body)})(scope, receive, send)


def waiting_for(go_on: asyncio.Event) -> ASGIApp:
    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await echo(scope, receive, send)

    return waiting


@asynccontextmanager
async def serving(app: ASGIApp = echo, limits: ConnectionLimits = LIMITS) -> AsyncIterator[Served]:
    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        served.asked.append(scope["path"].encode())
        try:
            await app(scope, receive, send)
        except ClientDisconnect:
            served.left += 1

    server = HttpServer(counted, limits=limits)
    host, _, port = (await server.start("127.0.0.1")).removeprefix("http://").partition(":")
    served = Served(server, host, int(port))
    try:
        yield served
    finally:
        async with asyncio.timeout(60):
            await server.drain()


async def answer_on(reader: asyncio.StreamReader) -> Told:
    """Status, headers and JSON of the next answer."""
    async with asyncio.timeout(60):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, json.loads(body)


async def refusal_on(reader: asyncio.StreamReader) -> tuple[int, object]:
    """Status and code, of an answer in OpenAI's shape that ends its connection."""
    status, headers, body = await answer_on(reader)
    assert headers["connection"] == "close"
    error = body["error"]
    assert isinstance(error, dict)
    assert error.keys() == {"message", "type", "param", "code"}
    assert_sentences(error["message"])
    assert await asyncio.wait_for(reader.read(), 60) == b""
    return status, error["code"]


async def flood(writer: asyncio.StreamWriter, piece: bytes, total_bytes: int) -> None:
    """Send until the other side will not have it."""
    try:
        for _ in range(total_bytes // len(piece)):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
