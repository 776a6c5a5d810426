"""How long a connection may take over a head, a body and between two requests."""

import asyncio
import socket
import time
from dataclasses import replace

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from deployments.process.http_connection import BoundedConnection
from tests.deployments.process.connections import (
    HEAD,
    LIMITS,
    answer_on,
    echo,
    refusal_on,
    serving,
    waiting_for,
)
from tests.waiting import until


async def test_a_connection_without_a_request_is_closed() -> None:
    async with serving(limits=replace(LIMITS, head_s=0.2)) as served:
        reader, _ = await served.connect()
        assert await asyncio.wait_for(reader.read(), 60) == b""


@pytest.mark.parametrize("after_an_answer", [False, True])
async def test_an_incomplete_request_is_a_408(after_an_answer: bool) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        if after_an_answer:
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await answer_on(reader))[0] == 200
        writer.write(HEAD)
        await until(lambda: served.only.scope and served.only._head_since)
        await served.later(100)
        assert await refusal_on(reader) == (408, "headers_timeout")


async def test_time_for_headers_does_not_run_between_two_requests() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await answer_on(reader))[0] == 200
            await served.later(100)
        writer.close()


async def test_empty_lines_do_not_keep_a_connection_open() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
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
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /second")
        await until(lambda: served.asked)
        go_on.set()
        assert (await answer_on(reader))[0] == 200
        go_on.clear()
        writer.write(b" HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: len(served.asked) == 2)
        assert served.only.timeout_keep_alive_task is None
        go_on.set()
        assert (await answer_on(reader))[0] == 200
        writer.close()


async def test_data_received_while_the_process_stalled_is_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop looks at its clocks before it reads."""
    begins, stalls = BoundedConnection.on_message_begin, True

    def stall(connection: BoundedConnection) -> None:
        nonlocal stalls
        begins(connection)
        if stalls:
            stalls = False
            for other in served.state.connections:
                other._head_since = connection.loop.time()  # type: ignore[union-attr]
            quiet.sendall(b"GET /quiet HTTP/1.1\r\nhost: a\r\n\r\n")
            time.sleep(1.0)

    monkeypatch.setattr(BoundedConnection, "on_message_begin", stall)
    async with serving(limits=replace(LIMITS, head_s=0.5)) as served:
        with (
            socket.create_connection((served.host, served.port)) as quiet,
            socket.create_connection((served.host, served.port)) as busy,
        ):
            await until(lambda: len(served.state.connections) == 2)
            busy.sendall(b"GET /busy HTTP/1.1\r\nhost: a\r\n\r\n")
            await until(lambda: set(served.asked) == {b"/busy", b"/quiet"})


async def test_request_timeouts_do_not_interrupt_a_long_answer() -> None:
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


async def test_a_stalled_body_is_a_408_and_its_reader_is_notified() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"content-length: 100000\r\n\r\n{")
        await until(lambda: served.only._body_bytes == 1)
        await served.later(11)
        assert await refusal_on(reader) == (408, "body_too_slow")
        await until(lambda: served.left == 1)


async def test_a_body_that_stalls_after_a_fast_start_is_a_408() -> None:
    """One megabyte at once bought a quarter of an hour, in which the gateway held it."""
    limits = replace(LIMITS, body_grace_s=0.5)
    async with serving(limits=limits) as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"content-length: 2000000\r\n\r\n" + bytes(1_000_000))
        assert await refusal_on(reader) == (408, "body_too_slow")
        await until(lambda: served.left == 1)
        writer.close()


async def test_a_slow_body_above_the_minimum_rate_is_accepted() -> None:
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
