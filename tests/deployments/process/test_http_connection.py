"""How much a connection may bring, and what: clients that break each bound of a real server."""

import asyncio
import contextlib
import logging
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from deployments.process import http_connection
from deployments.process.http_connection import BoundedConnection
from tests.deployments.process.connections import (
    HEAD,
    LIMITS,
    answer_on,
    flood,
    refusal_on,
    serving,
    waiting_for,
)
from tests.waiting import until


@pytest.mark.parametrize(
    "begins",
    [b"GET / HTTP/1.1\r\n", b"GET /", HEAD + b"x: ", HEAD + b"x"],
    ids=["many headers", "an address", "a value", "a name"],
)
async def test_megabytes_of_headers_are_not_buffered(begins: bytes) -> None:
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
async def test_a_request_has_at_most_a_hundred_headers(number: int, status: int) -> None:
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
async def test_headers_may_take_up_to_32_kib(value_bytes: int, status: int, where: str) -> None:
    value = "v" * value_bytes
    path, headers = ("/?" + value, {}) if where == "address" else ("/", {"x": value})
    async with serving() as served:
        reader, writer = await served.connect()
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        writer.write(f"GET {path} HTTP/1.1\r\nhost: h\r\n{lines}\r\n".encode())
        assert (await answer_on(reader))[0] == status
        writer.close()
        assert len(served.asked) == (status == 200)


async def test_a_large_body_does_not_reduce_the_header_limit_of_the_next_request() -> None:
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


async def test_a_full_server_refuses_new_connections_and_serves_existing_ones() -> None:
    go_on = asyncio.Event()
    async with serving(waiting_for(go_on), replace(LIMITS, connections=2)) as served:
        inside = [await served.connect() for _ in range(2)]
        for _, writer in inside:
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
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
from deployments.process.connection_limits import ConnectionLimits
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
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await answer_on(reader))[0] == 200


async def test_an_excess_connection_is_refused_without_a_scan_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 8,192 busy connections that look took a millisecond of the event loop."""
    looks = 0
    is_idle = vars(BoundedConnection)["is_idle"].fget

    def looked_at(connection: BoundedConnection) -> bool:
        nonlocal looks
        looks += 1
        return bool(is_idle(connection))

    go_on = asyncio.Event()
    async with serving(waiting_for(go_on), replace(LIMITS, connections=60)) as served:
        busy = [await served.connect() for _ in range(60)]
        for _, writer in busy:
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: len(served.asked) == 60)
        monkeypatch.setattr(BoundedConnection, "is_idle", property(looked_at))
        reader, _ = await served.connect()
        assert await refusal_on(reader) == (503, "too_many_connections")
        assert looks <= 1
        go_on.set()
        for _, writer in busy:
            writer.close()


async def test_the_connection_that_was_idle_longest_makes_room() -> None:
    async with serving(limits=replace(LIMITS, connections=3)) as served:
        idle = [await served.connect() for _ in range(3)]
        for reader, writer in [*idle, *idle[:1]]:
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await answer_on(reader))[0] == 200
        _, newest = await served.connect()
        assert await asyncio.wait_for(idle[1][0].read(), 60) == b""
        for reader, writer in (idle[0], idle[2]):
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await answer_on(reader))[0] == 200
        for writer in (newest, idle[0][1], idle[2][1]):
            writer.close()


async def test_a_flood_of_requests_in_one_piece_is_not_queued() -> None:
    gone = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving(waiting) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 10_000)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        await asyncio.wait_for(gone.wait(), 60)
        assert len(served.asked) == 1


async def test_a_few_requests_in_one_piece_are_answered_in_turn() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % i for i in range(10)))
        for _ in range(10):
            assert (await answer_on(reader))[0] == 200
        writer.close()
    assert served.asked == [b"/%d" % i for i in range(10)]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS says hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"CONNECT here:80 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"hello\r\n\r\n",
    ],
)
async def test_invalid_http_returns_a_400(sent: bytes) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(sent)
        assert await refusal_on(reader) == (400, "invalid_http")
    assert not served.asked


async def test_a_stream_is_not_disturbed_by_data_that_its_client_sends_meanwhile() -> None:
    go_on = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"last"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(parts())(scope, receive, send)

    async with serving(app) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"first"), 60)
        writer.write(b"nonsense\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 60) == b"\r\n"


async def test_repeated_invalid_requests_are_logged_once(
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
    told = [record for record in caplog.records if "rejected" in record.getMessage()]
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
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: served.asked)
    writer.close()


async def test_a_client_that_reads_slowly_gets_all_of_its_last_answer() -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(bytes(20_000_000), headers={"connection": "close"})(scope, receive, send)

    async with serving(large) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        size = 0
        while part := await reader.read(500_000):
            size += len(part)
            await asyncio.sleep(0.01)
        writer.close()
    assert size == 20_000_000


async def test_a_client_that_closed_its_side_counts_as_disconnected() -> None:
    """On purpose, and documented in docs/security.md: one that has crashed looks the same."""
    left = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with serving(waiting) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        writer.write_eof()
        await asyncio.wait_for(left.wait(), 60)
        assert await asyncio.wait_for(reader.read(), 60) == b""
