"""The HTTP server inside a replica: it shares its port, and it ends without cutting a stream."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.process.http_server import HttpServer
from tests.ports import free_ports


def answering(text: str) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(text)(scope, receive, send)

    return app


async def get(url: str) -> str:
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return await answer.text()


async def test_the_server_serves_as_soon_as_start_returns() -> None:
    server = HttpServer(answering("here"))
    assert await get(await server.start("127.0.0.1")) == "here"
    await server.drain()


async def test_the_server_serves_ipv6() -> None:
    server = HttpServer(answering("here"))
    try:
        url = await server.start("::1")
    except OSError:
        pytest.skip("this machine has no IPv6: give its loopback ::1")
    assert await get(url) == "here"
    await server.drain()


async def test_a_client_on_this_machine_cannot_write_an_address_into_our_logs() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(f"{scope['client'][0]} {scope['scheme']}")(scope, receive, send)

    server = HttpServer(app)
    url = await server.start("127.0.0.1")
    claims = {"x-forwarded-for": "1.2.3.4 FAKE LOG LINE", "x-forwarded-proto": "https"}
    async with aiohttp.ClientSession() as http, http.get(url, headers=claims) as answer:
        assert await answer.text() == "127.0.0.1 http"
    await server.drain()


async def test_a_drain_finishes_streams_and_refuses_new_connections() -> None:
    go_on = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"first "
        await go_on.wait()
        yield b"last"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(parts())(scope, receive, send)

    server = HttpServer(app)
    url = await server.start("127.0.0.1")
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        assert await answer.content.readany() == b"first "
        drain = asyncio.create_task(server.drain())
        address = urlsplit(url)
        with pytest.raises(ConnectionRefusedError):
            async with asyncio.timeout(60):
                while True:
                    # What was in the backlog when the server closed its socket is reset.
                    with contextlib.suppress(ConnectionResetError):
                        _, writer = await asyncio.open_connection(address.hostname, address.port)
                        writer.close()
                    await asyncio.sleep(0.01)
        assert not drain.done()
        go_on.set()
        assert await answer.content.read() == b"last"
    async with asyncio.timeout(60):
        await drain


async def test_an_idle_connection_does_not_hold_up_a_drain() -> None:
    server = HttpServer(answering("here"))
    url = await server.start("127.0.0.1")
    async with aiohttp.ClientSession() as http:
        async with http.get(url) as answer:
            await answer.read()
        async with asyncio.timeout(60):
            await server.drain()


async def test_two_servers_share_a_port_and_one_continues_after_the_other_drains() -> None:
    (port,) = free_ports(1)
    servers = {name: HttpServer(answering(name)) for name in ("one", "two")}
    urls = [await server.start("127.0.0.1", port) for server in servers.values()]
    assert urls[0] == urls[1] == f"http://127.0.0.1:{port}"
    assert {await get(urls[0]) for _ in range(60)} == {"one", "two"}
    await servers["one"].drain()
    assert {await get(urls[0]) for _ in range(10)} == {"two"}
    await servers["two"].drain()


async def test_a_port_that_another_program_has_is_an_error() -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1")
    port = taken.sockets[0].getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        await HttpServer(answering("here")).start("127.0.0.1", port)
    taken.close()


async def test_the_server_does_not_change_the_signal_handlers_of_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    server = HttpServer(answering("here"))
    await server.start("127.0.0.1")
    assert signal.getsignal(signal.SIGTERM) is before
    await server.drain()


async def test_a_stopping_server_closes_each_connection_with_its_next_answer() -> None:
    """So that clients that keep theirs look for another gateway, and no request is cut."""
    server = HttpServer(answering("here"))
    url = await server.start("127.0.0.1")
    async with aiohttp.ClientSession() as http:
        async with http.get(url) as answer:
            assert "connection" not in answer.headers
        server.close_connections()
        for _ in range(2):
            async with http.get(url) as answer:
                assert answer.headers["connection"] == "close"
                assert await answer.text() == "here"
    await server.drain()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has this option")
async def test_a_stream_ends_when_its_client_reads_nothing_for_too_long() -> None:
    """As when the client's machine is gone: nothing closes the connection."""
    ended = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(100_000)
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(parts())(scope, receive, send)

    server = HttpServer(app, unacknowledged_s=0.5)
    host, _, port = (await server.start("127.0.0.1")).removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        await asyncio.wait_for(ended.wait(), 60)
        await asyncio.wait_for(server.drain(), 60)
