"""Bounds on what a connection may bring: a real server, and clients that break each of them."""

import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.process import http_connection
from deployments.process.http_connection import BoundedConnection, ConnectionLimits
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
        self._state = server._server.server_state
        self.url = f"http://{host}:{port}"
        self.asked: list[bytes] = []
        self.left = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    @property
    def only(self) -> BoundedConnection:
        (connection,) = self._state.connections
        assert isinstance(connection, BoundedConnection)
        return connection

    async def later(self, by_s: float) -> None:
        """Its only connection has waited that much longer for whatever it waits for."""
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
        async with asyncio.timeout(20):
            await server.drain()


async def answer_on(reader: asyncio.StreamReader) -> Told:
    """Status, headers and JSON of the next answer."""
    async with asyncio.timeout(20):
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


@pytest.mark.parametrize(
    "begins",
    [b"GET / HTTP/1.1\r\n", b"GET /", HEAD + b"x: ", HEAD + b"x"],
    ids=["many headers", "an address", "a value", "a name"],
)
async def test_megabytes_of_headers_take_no_memory(begins: bytes) -> None:
    piece = (b"ab:cd\r\n" if begins.endswith(b"\n") else b"a" * 7) * 1000
    async with serving(limits=replace(LIMITS, refused_s=20)) as served:
        reader, writer = await served.connect()
        tracemalloc.start()
        try:
            writer.write(begins)
            await flood(writer, piece, 8_000_000)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        status, _, _ = await answer_on(reader)
        writer.close()
    assert status == 431
    assert peak_bytes < 4_000_000
    assert not served.asked


async def test_the_trailers_of_a_body_are_bounded_too() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx: ")
        await flood(writer, b"a" * 10_000, 1_000_000)
        assert await refusal_on(reader) == (431, "headers_too_large")
        await until(lambda: served.left == 1)


@pytest.mark.parametrize(("number", "status"), [(99, 200), (100, 431)])
async def test_a_hundred_headers_are_as_many_as_may_be(number: int, status: int) -> None:
    headers = {f"x-{i}": "y" for i in range(number - 4)}  # and four of the client's own
    async with (
        serving() as served,
        aiohttp.ClientSession() as http,
        http.get(served.url, headers={**headers, "x-one": "more"}) as answer,
    ):
        assert answer.status == status
        told = await answer.json()
    assert status == 200 or told["error"]["code"] == "too_many_headers"


@pytest.mark.parametrize(("value_bytes", "status"), [(31_000, 200), (33_000, 431)])
@pytest.mark.parametrize("where", ["address", "header"])
async def test_32_kib_are_as_much_as_headers_may_take(
    value_bytes: int, status: int, where: str
) -> None:
    value = "v" * value_bytes
    path, headers = ("/?" + value, {}) if where == "address" else ("/", {"x": value})
    async with serving() as served:
        reader, writer = await served.connect()
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        writer.write(f"GET {path} HTTP/1.1\r\nhost: h\r\n{lines}\r\n".encode())
        assert (await answer_on(reader))[0] == status
        writer.close()
        assert len(served.asked) == (status == 200)


async def test_large_bodies_leave_the_next_requests_headers_their_room() -> None:
    body = bytes(5_000_000)
    request = HEAD + b"content-length: %d\r\nx: %s\r\n\r\n" % (len(body), b"y" * 30_000) + body
    async with serving() as served:
        reader, writer = await served.connect()
        for _ in range(3):
            writer.write(request)
            status, _, told = await answer_on(reader)
            assert (status, told) == (200, {"bytes": len(body)})
        writer.close()


async def test_a_body_in_small_chunks_is_no_flood_of_headers() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        writer.write(b"1;why=not\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        status, _, told = await answer_on(reader)
        writer.close()
    assert (status, told) == (200, {"bytes": 50_000})


async def test_a_connection_that_asks_nothing_is_closed() -> None:
    async with serving(limits=replace(LIMITS, head_s=0.2)) as served:
        reader, _ = await served.connect()
        assert await asyncio.wait_for(reader.read(), 60) == b""


@pytest.mark.parametrize("after_an_answer", [False, True])
async def test_half_a_request_is_a_408(after_an_answer: bool) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        if after_an_answer:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await answer_on(reader))[0] == 200
        writer.write(HEAD)
        await until(lambda: served.only.scope and served.only._head_since)
        await served.later(100)
        assert await refusal_on(reader) == (408, "headers_timeout")


async def test_time_for_headers_does_not_run_between_two_requests() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await answer_on(reader))[0] == 200
            await served.later(100)
        writer.close()


async def test_empty_lines_do_not_keep_a_connection() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await answer_on(reader))[0] == 200
        waiting = served.only.timeout_keep_alive_task
        assert waiting is not None
        writer.write(b"\r\n\r\n")
        await until(lambda: served.only._kept_bytes == 4)
        assert served.only.timeout_keep_alive_task is waiting
        assert not waiting.cancelled()
        writer.close()


async def test_no_clock_for_idle_connections_runs_while_a_request_is_answered() -> None:
    """Not even where it began before the answer to the last one had ended."""
    go_on = asyncio.Event()
    async with serving(waiting_for(go_on)) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\nGET /second")
        await until(lambda: served.asked)
        go_on.set()
        assert (await answer_on(reader))[0] == 200
        go_on.clear()
        writer.write(b" HTTP/1.1\r\n\r\n")
        await until(lambda: len(served.asked) == 2)
        assert served.only.timeout_keep_alive_task is None
        go_on.set()
        assert (await answer_on(reader))[0] == 200
        writer.close()


async def test_what_came_while_the_process_stood_still_is_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop looks at its clocks before it reads."""
    begins, stalls = BoundedConnection.on_message_begin, True

    def stall(connection: BoundedConnection) -> None:
        nonlocal stalls
        begins(connection)
        if stalls:
            stalls = False
            for other in served._state.connections:
                other._head_since = connection.loop.time()  # type: ignore[union-attr]
            quiet.sendall(b"GET /quiet HTTP/1.1\r\n\r\n")
            time.sleep(1.0)

    monkeypatch.setattr(BoundedConnection, "on_message_begin", stall)
    async with serving(limits=replace(LIMITS, head_s=0.5)) as served:
        with (
            socket.create_connection((served.host, served.port)) as quiet,
            socket.create_connection((served.host, served.port)) as busy,
        ):
            await until(lambda: len(served._state.connections) == 2)
            busy.sendall(b"GET /busy HTTP/1.1\r\n\r\n")
            await until(lambda: set(served.asked) == {b"/busy", b"/quiet"})


async def test_an_answer_that_takes_long_is_not_cut_by_the_times_for_its_request() -> None:
    go_on = asyncio.Event()
    async with serving(waiting_for(go_on)) as served:
        reader, writer = await served.connect()
        # the beginning of a next one waits with it
        writer.write(HEAD + b"content-length: 2\r\n\r\n{}" + b"GET /")
        await until(lambda: served.asked)
        await served.later(100)
        go_on.set()
        assert (await answer_on(reader))[0] == 200
        writer.close()


async def test_a_body_that_stops_coming_is_a_408_and_its_reader_is_told() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"content-length: 100000\r\n\r\n{")
        await until(lambda: served.only._body_bytes == 1)
        await served.later(11)
        assert await refusal_on(reader) == (408, "body_too_slow")
        await until(lambda: served.left == 1)


async def test_a_body_that_comes_slowly_but_fast_enough_is_taken() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"content-length: 20001\r\n\r\n" + bytes(20_000))
        await until(lambda: served.only._body_bytes == 20_000)
        await served.later(20)
        writer.write(b"x")
        status, _, told = await answer_on(reader)
        writer.close()
    assert (status, told) == (200, {"bytes": 20_001})


async def test_a_body_that_waits_for_its_reader_is_not_too_slow() -> None:
    go_on = asyncio.Event()
    body = bytes(3_000_000)
    async with serving(waiting_for(go_on)) as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: served.asked and served.only.flow.read_paused)
        await served.later(10_000)
        go_on.set()
        assert (await answer_on(reader))[0] == 200
        writer.close()


async def test_a_body_that_waits_to_be_asked_for_is_not_too_slow() -> None:
    go_on = asyncio.Event()
    async with serving(waiting_for(go_on)) as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        await until(lambda: served.asked)
        await served.later(100)
        go_on.set()
        assert await asyncio.wait_for(reader.readline(), 60) == b"HTTP/1.1 100 Continue\r\n"
        await reader.readline()
        writer.write(b"{}")
        assert (await answer_on(reader))[0] == 200
        writer.close()


async def test_a_refused_body_has_the_id_that_the_log_has() -> None:
    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        Request(scope).state.request_id = "id-1"
        await echo(scope, receive, send)

    async with serving(named, replace(LIMITS, body_grace_s=0.1)) as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"content-length: 100000\r\n\r\n{")
        _, headers, _ = await answer_on(reader)
        assert headers["x-request-id"] == "id-1"
        writer.close()


async def test_a_full_server_refuses_those_who_come_then_and_serves_those_who_are_there() -> None:
    go_on = asyncio.Event()
    async with serving(waiting_for(go_on), replace(LIMITS, connections=2)) as served:
        inside = [await served.connect() for _ in range(2)]
        for _, writer in inside:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: len(served.asked) == 2)
        for _ in range(3):
            reader, _ = await served.connect()
            assert await refusal_on(reader) == (503, "too_many_connections")
        go_on.set()
        assert [(await answer_on(reader))[0] for reader, _ in inside] == [200, 200]
        for _, writer in inside:
            writer.close()


@pytest.mark.parametrize(
    ("hard", "connections", "soft_then"), [(4000, (4000 - 256) // 2, 4000), (300, 64, 300)]
)
def test_a_process_may_open_as_many_files_as_its_connections_need(
    hard: int, connections: int, soft_then: int
) -> None:
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
from deployments.process.http_connection import ConnectionLimits
print(ConnectionLimits().connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(connections), str(soft_then)], done.stderr


async def test_an_idle_connection_makes_room_for_a_new_one() -> None:
    async with serving(limits=replace(LIMITS, connections=2)) as served:
        for _ in range(5):
            reader, writer = await served.connect()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await answer_on(reader))[0] == 200


async def test_a_flood_of_requests_in_one_piece_is_not_queued() -> None:
    gone = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving(waiting) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10_000)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        await asyncio.wait_for(gone.wait(), 60)
        assert len(served.asked) == 1


async def test_a_few_requests_in_one_piece_are_answered_in_turn() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % i for i in range(10)))
        for _ in range(10):
            assert (await answer_on(reader))[0] == 200
        writer.close()
    assert served.asked == [b"/%d" % i for i in range(10)]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS says hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"CONNECT here:80 HTTP/1.1\r\n\r\n",
        b"hello\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_a_400_that_says_so(sent: bytes) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(sent)
        assert await refusal_on(reader) == (400, "invalid_http")
    assert not served.asked


async def test_a_stream_is_not_spoilt_by_what_its_client_sends_then() -> None:
    go_on = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"last"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(parts())(scope, receive, send)

    async with serving(app) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"first"), 60)
        writer.write(b"nonsense\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 60) == b"\r\n"


async def test_strangers_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_connection, "_complaints", http_connection._Complaints())
    with caplog.at_level(logging.INFO):
        async with serving() as served:
            for _ in range(20):
                reader, writer = await served.connect()
                writer.write(b"hello\r\n\r\n")
                await answer_on(reader)
                writer.close()
    told = [record for record in caplog.records if "refused" in record.getMessage()]
    assert len(told) == 1
    assert told[0].name == "deployments.process.http_connection"
    assert not [record for record in caplog.records if "Invalid HTTP" in record.getMessage()]


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
async def test_a_request_to_change_the_protocol_is_served_as_it_is(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's client asks for h2c with its first request, and sends the next on its connection."""
    upgrade = (
        f"connection: upgrade\r\nupgrade: {protocol}\r\nsec-websocket-version: 13\r\n".encode()
    )
    async with serving() as served:
        reader, writer = await served.connect()
        request = HEAD + upgrade + b"content-length: 2\r\n\r\n{}"
        for sent in ([request], [request + request], [bytes([one]) for one in request]):
            for part in sent:
                writer.write(part)
                await writer.drain()
            for _ in range(2 if sent == [request + request] else 1):
                status, headers, told = await answer_on(reader)
                assert (status, told) == (200, {"bytes": 2})
                assert "connection" not in headers
        writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_reads_nothing_does_not_hold_up_a_drain() -> None:
    """Its last answer is in the server's memory, and closing would wait until it is taken."""

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(bytes(50_000_000))(scope, receive, send)

    async with serving(large, replace(LIMITS, untaken_s=0.2)) as served:
        _, writer = await served.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: served.asked)
    writer.close()


async def test_a_client_that_reads_slowly_gets_all_of_its_last_answer() -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(bytes(20_000_000), headers={"connection": "close"})(scope, receive, send)

    async with serving(large) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        size = 0
        while part := await reader.read(500_000):
            size += len(part)
            await asyncio.sleep(0.01)
        writer.close()
    assert size == 20_000_000


async def test_a_client_that_has_closed_its_side_has_left() -> None:
    """On purpose, and told in docs/security.md: one that has crashed looks the same."""
    left = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with serving(waiting) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        writer.write_eof()
        await asyncio.wait_for(left.wait(), 60)
        assert await asyncio.wait_for(reader.read(), 60) == b""
