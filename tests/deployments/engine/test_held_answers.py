"""A stream outlives its reader in the replica, over real HTTP, and no longer than it should."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from deployments.engine import held_answers
from deployments.engine.held_answers import OWN_BYTES, HeldAnswers
from deployments.process.http_server import HttpServer
from deployments.wire.headers import (
    EVENTS_HEADER,
    HELD_HEADER,
    HELD_PATH,
    HOLD_HEADER,
    READER_HEADER,
    TAKEN_OVER_COMMENT,
    TICKET_HEADER,
)
from tests.waiting import until

EVENT = b"data: " + b"x" * 94 + b"\n\n"
EVENTS = 10
WHOLE = b": a comment\n\n" + EVENT * EVENTS


class Engine:
    """Streams a comment and EVENTS, one whenever it `may`; `stopped` counts clients that left."""

    def __init__(self, most_bytes: int = held_answers.MOST_BYTES) -> None:
        self.may = asyncio.Semaphore(0)
        self.made = self.stopped = 0
        self.breaks_after: int | None = None
        self.url = ""
        routes = [
            Route("/stream", self._stream, methods=["POST"]),
            Route("/whole", self._whole, methods=["POST"]),
            Route("/fails", self._fails, methods=["POST"]),
            Route("/never", self._never, methods=["POST"]),
        ]
        self.held = HeldAnswers(Starlette(routes=routes), most_bytes)
        self.server = HttpServer(Starlette(routes=[Mount("/", self.held)]))

    async def _stream(self, request: Request) -> Response:
        await request.body()
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        made = 0
        try:
            yield b": a comment\n\n"
            for made in range(EVENTS):
                if made == self.breaks_after:
                    raise RuntimeError("the engine died")
                await self.may.acquire()
                self.made += 1
                yield EVENT[:7]
                yield EVENT[7:]
        except (asyncio.CancelledError, GeneratorExit):
            self.stopped += 1
            raise

    async def _whole(self, request: Request) -> Response:
        return JSONResponse({"answer": "x" * 1000})

    async def _fails(self, request: Request) -> Response:
        return PlainTextResponse("no", status_code=400)

    async def _never(self, request: Request) -> Response:
        while not await request.is_disconnected():  # noqa: ASYNC110  # Starlette says no more
            await asyncio.sleep(0.01)
        self.stopped += 1
        return Response()

    def go_on(self, events: int = EVENTS) -> None:
        for _ in range(events):
            self.may.release()


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[Engine]:
    engine.url = await engine.server.start("127.0.0.1")
    try:
        yield engine
    finally:
        engine.go_on(1000)
        engine.held.close()
        async with asyncio.timeout(60):
            await engine.server.drain()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with served(Engine()) as engine:
        yield engine


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(
    http: aiohttp.ClientSession,
    engine: Engine,
    ticket: str = "t",
    path: str = "/stream",
    hold_s: float = 60.0,
) -> aiohttp.ClientResponse:
    headers = {HOLD_HEADER: str(hold_s), TICKET_HEADER: ticket, "x-request-id": "abc"}
    return await http.post(engine.url + path, data=b"{}", headers=headers)


async def visit(
    http: aiohttp.ClientSession,
    engine: Engine,
    reader: str,
    ticket: str = "t",
    events: int = 0,
    method: str = "POST",
) -> aiohttp.ClientResponse:
    headers = {HELD_HEADER: ticket, READER_HEADER: reader, EVENTS_HEADER: str(events)}
    return await http.request(method, engine.url + HELD_PATH, headers=headers)


async def some(answer: aiohttp.ClientResponse, size: int) -> bytes:
    async with asyncio.timeout(60):
        return await answer.content.readexactly(size)


async def test_a_stream_is_passed_on_as_it_is(http: aiohttp.ClientSession, engine: Engine) -> None:
    answer = await ask(http, engine)
    assert answer.headers[HOLD_HEADER] == "abc"
    assert await some(answer, 13) == WHOLE[:13]  # before the next is made
    engine.go_on()
    assert await answer.read() == WHOLE[13:]
    assert engine.held.held_bytes == OWN_BYTES + len(WHOLE)


async def test_a_stream_without_the_header_is_not_kept(
    http: aiohttp.ClientSession, engine: Engine
) -> None:
    answer = await http.post(engine.url + "/stream", data=b"{}", headers={TICKET_HEADER: "t"})
    assert HOLD_HEADER not in answer.headers
    assert not len(engine.held)
    await some(answer, 13)
    answer.close()
    await until(lambda: engine.stopped == 1)


@pytest.mark.parametrize("read", [13, 20, 13 + 3 * len(EVENT)])
async def test_when_its_reader_is_gone_another_gets_all_of_it(
    http: aiohttp.ClientSession, engine: Engine, read: int
) -> None:
    engine.go_on(5)
    answer = await ask(http, engine)
    await some(answer, read)
    answer.close()
    await until(lambda: engine.made == 5)
    again = await visit(http, engine, "second", events=3)
    assert again.status == 200 and again.headers[HOLD_HEADER] == "abc"
    assert again.headers["content-type"].startswith("text/event-stream")
    assert await some(again, 13 + 5 * len(EVENT)) == WHOLE[: 13 + 5 * len(EVENT)]
    engine.go_on()
    assert await again.read() == WHOLE[13 + 5 * len(EVENT) :]
    assert engine.stopped == 0
    # while it is kept, also after its end
    assert await (await visit(http, engine, "third")).read() == WHOLE


async def test_a_later_reader_takes_over_and_the_previous_reader_is_notified(
    http: aiohttp.ClientSession, engine: Engine
) -> None:
    one = await ask(http, engine)
    await some(one, 13)
    two = await visit(http, engine, "second")
    assert await one.read() == TAKEN_OVER_COMMENT + b"\n\n"
    three = await visit(http, engine, "third")
    assert await two.read() in (
        TAKEN_OVER_COMMENT + b"\n\n",
        WHOLE[:13] + TAKEN_OVER_COMMENT + b"\n\n",
    )
    # nor can they end it
    for reader in ("t", "second"):
        assert (await visit(http, engine, reader, method="DELETE")).status == 204
    engine.go_on()
    assert await three.read() == WHOLE
    assert engine.stopped == 0


@pytest.mark.parametrize("first", ["leaves", "says so"])
async def test_a_reader_that_leaves_on_purpose_ends_the_stream_at_once(
    http: aiohttp.ClientSession, engine: Engine, first: str
) -> None:
    answer = await ask(http, engine)
    await some(answer, 13)
    if first == "leaves":
        answer.close()
    assert (await visit(http, engine, "t", method="DELETE")).status == 204
    await until(lambda: engine.stopped == 1)
    assert (await visit(http, engine, "second")).status == 404
    assert engine.held.held_bytes == len(engine.held) == 0


async def test_a_stream_without_a_reader_ends_after_the_hold_time(
    http: aiohttp.ClientSession, engine: Engine
) -> None:
    answer = await ask(http, engine, hold_s=0.1)
    await some(answer, 13)
    answer.close()
    await until(lambda: engine.stopped == 1)
    assert engine.held.held_bytes == len(engine.held) == 0


async def test_a_later_reader_has_no_time_limit(
    http: aiohttp.ClientSession, engine: Engine
) -> None:
    answer = await ask(http, engine, hold_s=0.1)
    await some(answer, 13)
    again = await visit(http, engine, "second")
    answer.close()
    await some(again, 13)
    await asyncio.sleep(0.3)
    engine.go_on()
    assert await again.read() == WHOLE[13:]
    await until(lambda: len(engine.held) == 0)
    assert engine.held.held_bytes == 0
    assert (await visit(http, engine, "third")).status == 404


async def test_a_client_that_leaves_before_it_begins_ends_it(
    http: aiohttp.ClientSession, engine: Engine
) -> None:
    """No client can know of it."""
    asking = asyncio.create_task(ask(http, engine, path="/never"))
    await until(lambda: len(engine.held) == 1)
    assert (await visit(http, engine, "second")).status == 404
    asking.cancel()
    await until(lambda: engine.stopped == 1)
    assert engine.held.held_bytes == len(engine.held) == 0


async def test_a_request_for_too_many_events_disturbs_no_reader(
    http: aiohttp.ClientSession, engine: Engine
) -> None:
    engine.go_on(2)
    answer = await ask(http, engine)
    await some(answer, 13 + 2 * len(EVENT))
    assert (await visit(http, engine, "second", events=3)).status == 409
    engine.go_on()
    assert await answer.read() == EVENT * (EVENTS - 2)


async def test_a_missing_stream_is_unknown(http: aiohttp.ClientSession, engine: Engine) -> None:
    assert (await visit(http, engine, "second")).status == 404
    assert (await visit(http, engine, "second", method="DELETE")).status == 204


@pytest.mark.parametrize("path", ["/whole", "/fails"])
async def test_an_answer_that_is_no_stream_is_not_kept(
    http: aiohttp.ClientSession, engine: Engine, path: str
) -> None:
    answer = await ask(http, engine, path=path)
    body = await answer.read()
    assert body == b"no" or len(body) > 1000
    assert HOLD_HEADER not in answer.headers
    assert engine.held.held_bytes == len(engine.held) == 0


async def test_an_engine_that_fails_cuts_it_for_all_readers(
    http: aiohttp.ClientSession, engine: Engine
) -> None:
    engine.breaks_after = 2
    engine.go_on(2)
    answer = await ask(http, engine)
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer.read()
    again = await visit(http, engine, "second")
    with pytest.raises(aiohttp.ClientPayloadError):
        await again.read()


async def test_beyond_its_bytes_what_has_ended_goes_first(http: aiohttp.ClientSession) -> None:
    room = 2 * (OWN_BYTES + len(WHOLE)) + 2 * OWN_BYTES
    async with served(Engine(room)) as engine:
        engine.go_on(2 * EVENTS)
        for ticket in ("one", "two"):
            assert await (await ask(http, engine, ticket)).read() == WHOLE
        assert len(engine.held) == 2
        three = await ask(http, engine, "three")
        await some(three, 13)
        assert len(engine.held) == 3
        four = await ask(http, engine, "four")
        engine.go_on(2 * EVENTS)
        assert await three.read() == WHOLE[13:]
        assert await four.read() == WHOLE
        assert (await visit(http, engine, "x", "one")).status == 404
        assert engine.held.held_bytes <= room


async def test_one_that_outgrows_all_ends_with_its_reader(http: aiohttp.ClientSession) -> None:
    async with served(Engine(OWN_BYTES + 3 * len(EVENT))) as engine:
        answer = await ask(http, engine)
        assert HOLD_HEADER in answer.headers
        engine.go_on(5)
        await some(answer, 13 + 5 * len(EVENT))
        assert engine.held.held_bytes == len(engine.held) == 0
        assert (await visit(http, engine, "second")).status == 404
        answer.close()
        await until(lambda: engine.stopped == 1)
        # and its bytes come as they should
        answer = await ask(http, engine, "u")
        engine.go_on()
        assert await answer.read() == WHOLE


async def test_one_whose_reader_is_gone_and_that_outgrows_all_ends(
    http: aiohttp.ClientSession,
) -> None:
    async with served(Engine(OWN_BYTES + 3 * len(EVENT))) as engine:
        answer = await ask(http, engine)
        await some(answer, 13)
        answer.close()
        await asyncio.sleep(0.1)
        engine.go_on(5)
        await until(lambda: engine.stopped == 1)


async def test_a_replica_that_stops_waits_for_readers_alone(http: aiohttp.ClientSession) -> None:
    async with served(Engine()) as engine:
        unread = await ask(http, engine, "unread")
        read = await ask(http, engine, "read")
        await some(unread, 13)
        await some(read, 13)
        unread.close()
        await asyncio.sleep(0.1)
        engine.held.close()
        await until(lambda: engine.stopped == 1)
        engine.go_on()
        assert await read.read() == WHOLE[13:]
        later = await ask(http, engine, "later")
        assert HOLD_HEADER not in later.headers


async def test_a_stream_is_taken_over_ten_times_a_minute_at_most(
    http: aiohttp.ClientSession, engine: Engine
) -> None:
    """Each reader gets all of it again, and takes the replica's time for that."""
    first = await ask(http, engine)
    await some(first, 13)
    for number in range(held_answers.MOST_TAKEOVERS):
        assert (await visit(http, engine, f"reader {number}")).status == 200
    refused = await visit(http, engine, "one too many")
    assert refused.status == 429
    assert 50 <= int(refused.headers["retry-after"]) <= 60
    engine.go_on()


async def test_a_stream_may_be_taken_over_again_later(
    http: aiohttp.ClientSession, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_answers, "TAKEOVERS_S", 0.0)
    first = await ask(http, engine)
    await some(first, 13)
    for number in range(held_answers.MOST_TAKEOVERS):
        await visit(http, engine, f"reader {number}")
    assert (await visit(http, engine, "one more")).status == 200
    engine.go_on()
