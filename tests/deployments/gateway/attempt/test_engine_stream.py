"""Streams from a real server, read as they come from the connection."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from deployments.gateway.attempt.engine_stream import connector, pieces
from tests.deployments.process.connections import serving
from tests.waiting import until

PARTS = [b"%d;" % number for number in range(50)]


async def _send_parts(send: Send, parts: list[bytes], gap_s: float, ends: bool = True) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(gap_s)
    if ends:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def answering(
    parts: list[bytes], gap_s: float = 0.001, ends: bool = True
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await _send_parts(send, parts, gap_s, ends)

    async with (
        serving(app) as served,
        aiohttp.ClientSession(connector=connector(limit=1)) as http,
    ):
        yield http, served.url


async def _read(
    answer: aiohttp.ClientResponse, take: Callable[[bytes], bool], wait_s: float = 0.0
) -> list[bytes]:
    left = []
    async for piece in pieces(answer, take):
        left.append(piece)
        await asyncio.sleep(wait_s)
    return left


async def test_pieces_are_passed_to_the_callback_outside_of_tasks() -> None:
    taken, tasks = bytearray(), set()

    def take(piece: bytes) -> bool:
        tasks.add(asyncio.current_task())
        taken.extend(piece)
        return True

    async with answering(PARTS, gap_s=0.01) as (http, url), http.get(url) as answer:
        assert await _read(answer, take) == []
    assert taken == b"".join(PARTS)
    # the first may have come with the head, before anybody reads
    assert None in tasks and len(tasks) <= 2


async def test_streams_are_read_with_an_aiohttp_that_has_one_reason_to_pause() -> None:
    async with answering(PARTS, gap_s=0.01) as (http, url), http.get(url) as answer:
        assert answer.connection is not None
        delattr(answer.connection.protocol, "_buffer_paused")  # as in aiohttp 3.14.3
        assert b"".join(await _read(answer, lambda piece: False)) == b"".join(PARTS)


@pytest.mark.parametrize("every", [1, 2, 3, 7])
async def test_pieces_that_the_callback_declines_arrive_in_order(every: int) -> None:
    whole, offered = bytearray(), 0

    def take(piece: bytes) -> bool:
        nonlocal offered
        offered += 1
        if offered % every == 0:
            return False
        whole.extend(piece)
        return True

    async with answering(PARTS) as (http, url), http.get(url) as answer:
        async for piece in pieces(answer, take):
            whole.extend(piece)
            await asyncio.sleep(0.003)
    assert whole == b"".join(PARTS)


async def test_a_slow_reader_gets_all_of_an_answer_that_is_larger_than_any_buffer() -> None:
    parts = [bytes([number]) * 100_000 for number in range(100)]
    async with answering(parts, gap_s=0.0) as (http, url), http.get(url) as answer:
        left = await _read(answer, lambda piece: False, wait_s=0.002)
    assert b"".join(left) == b"".join(parts)


async def test_an_exception_in_the_callback_is_raised() -> None:
    class Enough(Exception):
        pass

    taken: list[bytes] = []

    def take(piece: bytes) -> bool:
        taken.append(piece)
        if len(taken) == 3:
            raise Enough
        return True

    async with answering(PARTS, gap_s=0.01) as (http, url), http.get(url) as answer:
        with pytest.raises(Enough):
            await _read(answer, take)
        assert len(taken) == 3


async def test_an_interrupted_answer_is_an_error() -> None:
    taken = bytearray()

    def take(piece: bytes) -> bool:
        taken.extend(piece)
        return True

    async with answering(PARTS[:3], gap_s=0.01, ends=False) as (http, url), http.get(url) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await _read(answer, take)
    assert taken == b"".join(PARTS[:3])


async def test_an_answer_that_is_closed_meanwhile_is_an_error() -> None:
    taken = bytearray()

    def take(piece: bytes) -> bool:
        taken.extend(piece)
        return True

    async with answering(PARTS, ends=False, gap_s=0.01) as (http, url), http.get(url) as answer:
        reading = asyncio.create_task(_read(answer, take))
        await until(lambda: len(taken) > 0)
        answer.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await reading


async def test_the_next_answer_on_the_same_connection_is_separate() -> None:
    takers: list[list[bytes]] = [[] for _ in range(3)]

    async with answering(PARTS, gap_s=0.0) as (http, url):
        for taken in takers:

            def take(piece: bytes, taken: list[bytes] = taken) -> bool:
                taken.append(piece)
                return True

            async with http.get(url) as answer:
                assert await _read(answer, take) == []
    assert [b"".join(taken) for taken in takers] == [b"".join(PARTS)] * 3


async def test_a_canceled_reader_gets_no_more_pieces() -> None:
    taken: list[bytes] = []

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return True

    async with answering(PARTS, gap_s=0.01) as (http, url), http.get(url) as answer:
        reading = asyncio.create_task(_read(answer, take))
        await until(lambda: len(taken) > 0)
        reading.cancel()
        await asyncio.wait({reading})
        number = len(taken)
        rest = await answer.content.read()
        assert b"".join(taken[:number]) + rest == b"".join(PARTS)
        assert len(taken) == number
