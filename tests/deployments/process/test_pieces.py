"""An answer's pieces that do not go through ASGI, on a real server."""

import asyncio
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from deployments.process.pieces import AnswerPieces, pieces_of
from tests.deployments.process.connections import serving
from tests.waiting import until


def start(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body(piece: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": more}


async def test_direct_pieces_keep_their_place_between_pieces_sent_through_asgi() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pieces = pieces_of(scope)
        await send(start())
        pieces.write(b"a" * 20)
        await send(body(b"b"))
        pieces.write(b"c")
        pieces.write(b"d" * 300)
        await send(body(b"e", more=False))

    async with serving(app) as served, aiohttp.ClientSession() as http:
        for _ in range(2):  # on one connection
            async with http.get(served.url) as answer:
                assert await answer.read() == b"a" * 20 + b"bc" + b"d" * 300 + b"e"


async def test_direct_pieces_are_accepted_only_in_the_middle_of_an_answer() -> None:
    found: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pieces = pieces_of(scope)
        found.append(pieces.take_one)
        await send(start())
        found.append(pieces.take_one)
        await send(body(b"", more=False))
        found.append(pieces.take_one)

    async with (
        serving(app) as served,
        aiohttp.ClientSession() as http,
        http.get(served.url) as answer,
    ):
        await answer.read()
    assert found == [False, True, False]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_answer_with_a_content_length_accepts_no_direct_pieces(method: str) -> None:
    found: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start((b"content-length", b"2")))
        found.append(pieces_of(scope).take_one)
        await send(body(b"ab", more=False))

    async with (
        serving(app) as served,
        aiohttp.ClientSession() as http,
        http.request(method, served.url) as answer,
    ):
        await answer.read()
    assert found == [False]


async def test_no_direct_pieces_are_accepted_while_the_client_does_not_read() -> None:
    all_pieces: list[AnswerPieces] = []
    written = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal written
        pieces = pieces_of(scope)
        all_pieces.append(pieces)
        await send(start())
        while pieces.take_one:
            pieces.write(bytes(100_000))
            written += 100_000
        await send(body(b"x"))  # waits
        assert pieces.take_one
        pieces.write(b"y")
        await send(body(b"", more=False))

    async with (
        serving(app) as served,
        aiohttp.ClientSession() as http,
        http.get(served.url) as answer,
    ):
        await until(lambda: written)
        assert await answer.read() == bytes(written) + b"xy"


async def test_no_direct_pieces_are_accepted_after_the_client_has_left() -> None:
    found: list[AnswerPieces] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        found.append(pieces_of(scope))
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(app) as served:
        _, writer = await served.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: found)
        assert found[0].take_one
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), 60)
        await until(lambda: not found[0].take_one)


async def test_a_foreign_server_accepts_no_direct_pieces() -> None:
    assert not pieces_of({"type": "http"}).take_one
