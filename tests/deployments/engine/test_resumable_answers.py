"""An answer that another engine could resume, on its way through a replica, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deployments.engine.serving.confirming import Confirming
from deployments.gateway.attempt.engine_errors import EngineError
from deployments.process.http_server import HttpServer
from deployments.wire import confirmation, resumable
from deployments.wire.headers import (
    LOAD_HEADER,
    PROGRESS_CONTENT_TYPE,
    PROMPT_TOKENS_HEADER,
    RESUMABLE_HEADER,
    RESUME_FIELD,
)
from deployments.wire.inference_paths import RESPONSES
from deployments.wire.resumable import ResumableExchange
from router.board.load import LoadReport, ReplicaQueue

ASKED = {RESUMABLE_HEADER: "1"}
PATH = "/v1/completions"
TOKENS = (11, 12, 13, 14)


class Engine:
    """Says `TOKENS` one by one; an event each except the second, as parsers may have it."""

    def __init__(self) -> None:
        self.offers = True
        self.exact_events = False
        self.loses_events = False
        self.refuses = False
        self.dies_after: int | None = None  # tokens
        self.fails_after: int | None = None
        self.fails_replaying = self.dies_replaying = False
        self.go = asyncio.Event()
        self.go.set()
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        paths = (PATH, RESPONSES, "/v1/embeddings")
        routes = [Route(path, self._answer, methods=["POST"]) for path in paths]
        app = Confirming(Starlette(routes=routes), lambda: LoadReport(1, ReplicaQueue(2, 3, 400)))
        self.server = HttpServer(app)

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        exchange = resumable.current.get()
        if body.get("stream"):
            begins = request.url.path == RESPONSES
            events = self._begun(exchange) if begins else self._events(exchange)
            if not begins:
                self._offer(exchange)
            return StreamingResponse(events, media_type="text/event-stream")
        self._offer(exchange, in_one_piece=True)
        said = [token async for token, _ in self._tokens(exchange)]
        if self.fails_after is not None:
            return JSONResponse({"error": "it failed"}, status_code=500)
        if exchange is not None and exchange.lost:
            return JSONResponse({"error": "see above"}, status_code=500)
        return JSONResponse({"said": said})

    def _offer(self, exchange: ResumableExchange | None, in_one_piece: bool = False) -> None:
        if exchange is not None:
            exchange.prompts = 1
            exchange.offered, exchange.exact_events = self.offers, self.exact_events
            exchange.in_one_piece = in_one_piece

    async def _begun(self, exchange: ResumableExchange | None) -> AsyncIterator[str]:
        """As vLLM sends a response: its first events come before the engine is asked."""
        yield "data: created\n\n"
        yield "data: in progress\n\n"
        if self.refuses:
            yield "data: refused\n\n"
            return
        self._offer(exchange)
        async for event in self._events(exchange):
            yield event

    async def _tokens(self, exchange: ResumableExchange | None) -> AsyncIterator[tuple[int, bool]]:
        """Each token, and whether it is one that was reported."""
        known = exchange.known if exchange else None
        told = known.token_ids(0) if known else []
        if exchange is not None and (self.fails_replaying or self.dies_replaying):
            exchange.failed, exchange.lost = True, self.dies_replaying
            return
        for token in told:
            yield token, True
        if exchange is not None:
            exchange.replaying = False
        for number, token in enumerate(TOKENS[len(told) :], len(told)):
            if number == self.fails_after:
                return
            if number == self.dies_after:
                assert exchange is not None
                exchange.failed = exchange.lost = True
                return
            if number == len(told) + 1:
                await self.go.wait()
            exchange_now = confirmation.current.get()
            assert exchange_now is not None
            if exchange_now.first_token_at is None:
                exchange_now.first_token(10, 4)
            exchange_now.generated(1)
            if exchange is not None:
                exchange.chunk(0, [token])
            yield token, False

    async def _events(self, exchange: ResumableExchange | None) -> AsyncIterator[str]:
        async for token, told in self._tokens(exchange):
            if self.loses_events and not told:
                assert exchange is not None
                exchange.refuse("The engine made other events.")
            if token != TOKENS[1]:
                yield f"data: {token}\n\n"
        if exchange is not None and exchange.failed:
            yield "data: see above\n\n"
        yield "data: [DONE]\n\n"


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    engine.url = await engine.server.start("127.0.0.1")
    yield engine
    engine.go.set()
    await engine.server.drain()


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as http:
        yield http


def resuming(tokens: int, events: int, **body: Any) -> dict[str, Any]:
    told = {
        "chunks": [[0, [token]] for token in TOKENS[:tokens]],
        "events": events,
        "cached_tokens": 4,
        "created": 1,
    }
    return body | {RESUME_FIELD: told}


WHOLE = (
    b": antefix-tokens 0 11\n\ndata: 11\n\n"
    b": antefix-tokens 0 12\n\n: antefix-tokens 0 13\n\ndata: 13\n\n"
    b": antefix-tokens 0 14\n\ndata: 14\n\n"
    b"data: [DONE]\n\n: antefix-output-tokens 4\n\n"
)


async def test_a_streams_tokens_come_before_their_events(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    async with http.post(PATH, json={"stream": True}, headers=ASKED) as answer:
        assert answer.headers[RESUMABLE_HEADER]
        assert {LOAD_HEADER, PROMPT_TOKENS_HEADER} <= answer.headers.keys()
        assert await answer.read() == WHOLE


async def test_a_request_without_the_header_gets_the_plain_answer_of_the_engine(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    async with http.post(PATH, json={"stream": True}) as answer:
        assert RESUMABLE_HEADER not in answer.headers
        assert await answer.read() == b"data: 11\n\ndata: 13\n\ndata: 14\n\ndata: [DONE]\n\n"
    async with http.post(PATH, json={RESUME_FIELD: 1}) as answer:
        assert await answer.json() == {"said": [*TOKENS]}


@pytest.mark.parametrize(("tokens", "events"), [(1, 0), (1, 1), (2, 1), (3, 1), (3, 2), (4, 3)])
async def test_a_resumed_stream_contains_only_what_the_client_lacks(
    engine: Engine, http: aiohttp.ClientSession, tokens: int, events: int
) -> None:
    body = resuming(tokens, events, stream=True)
    async with http.post(PATH, json=body, headers=ASKED) as answer:
        assert answer.status == 200
        assert answer.headers[RESUMABLE_HEADER]
        blocks = (await answer.read()).split(b"\n\n")
    assert engine.bodies == [{"stream": True}]
    whole = [block for block in WHOLE.split(b"\n\n") if not block.startswith(b":")]
    assert [block for block in blocks if not block.startswith(b":")] == whole[events:]
    told = [int(block.split()[-1]) for block in blocks if block.startswith(b": antefix-tokens")]
    assert told == [*TOKENS[tokens:]]


async def test_a_response_begins_with_its_first_token(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    begun = b"data: created\n\ndata: in progress\n\n"
    first = b": antefix-tokens 0 11\n\n"
    async with http.post(RESPONSES, json={"stream": True}, headers=ASKED) as answer:
        assert answer.headers[RESUMABLE_HEADER]
        assert answer.headers[PROMPT_TOKENS_HEADER] == "10"
        assert await answer.read() == WHOLE.replace(first, first + begun)
    for events in range(4):
        body = resuming(2, events, stream=True)
        async with http.post(RESPONSES, json=body, headers=ASKED) as answer:
            blocks = (await answer.read()).split(b"\n\n")
        rest = [b"data: created", b"data: in progress", b"data: 11", b"data: 13", b"data: 14"]
        said = [block for block in blocks if block.startswith(b"data: ")]
        assert said == [*rest[events:], b"data: [DONE]"]
    async with http.post(RESPONSES, json={"stream": True}) as answer:
        assert (await answer.read()).startswith(begun)


async def test_a_response_is_unchanged_when_resuming_is_not_requested_or_not_offered(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    engine.offers = False
    for refuses, last in ((True, b"data: refused"), (False, b": antefix-output-tokens 4")):
        engine.refuses = refuses
        async with http.post(RESPONSES, json={"stream": True}, headers=ASKED) as answer:
            assert RESUMABLE_HEADER not in answer.headers
            said = await answer.read()
        blocks = said.split(b"\n\n")
        events = [block for block in blocks if block.startswith(b"data: ")]
        assert events[:2] == [b"data: created", b"data: in progress"]
        assert blocks[-2] == last


async def test_an_unstreamed_answer_reports_its_tokens_as_they_are_generated(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    engine.go.clear()
    async with http.post(PATH, json={}, headers=ASKED) as answer:
        assert answer.content_type == PROGRESS_CONTENT_TYPE
        assert answer.headers[PROMPT_TOKENS_HEADER] == "10"
        assert await answer.content.readuntil(b"\n\n") == b": antefix-tokens 0 11\n\n"
        engine.go.set()
        rest = await answer.read()
    tokens, _, said = rest.partition(b": antefix-answer ")
    made = b"".join(b": antefix-tokens 0 %d\n\n" % token for token in TOKENS[1:])
    assert tokens == made + b": antefix-output-tokens %d\n\n" % len(TOKENS)
    length, _, body = said.partition(b"\n\n")
    assert int(length) == len(body)
    assert json.loads(body) == {"said": [*TOKENS]}


@pytest.mark.parametrize("known", [2, 4])
async def test_an_unstreamed_answer_is_resumed(
    engine: Engine, http: aiohttp.ClientSession, known: int
) -> None:
    async with http.post(PATH, json=resuming(known, 0), headers=ASKED) as answer:
        assert answer.content_type == PROGRESS_CONTENT_TYPE
        assert answer.headers[RESUMABLE_HEADER]
        tokens, _, said = (await answer.read()).partition(b": antefix-answer ")
    assert tokens.count(b": antefix-tokens") == len(TOKENS) - known
    assert json.loads(said.partition(b"\n\n")[2]) == {"said": [*TOKENS]}


async def test_an_error_before_the_first_token_is_plain(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    engine.fails_after = 0
    async with http.post(PATH, json={}, headers=ASKED) as answer:
        assert answer.status == 500
        assert RESUMABLE_HEADER not in answer.headers
        assert await answer.json() == {"error": "it failed"}


async def test_a_late_error_is_sent_with_its_length_and_status(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    engine.fails_after, engine.go = 3, asyncio.Event()
    async with http.post(PATH, json={}, headers=ASKED) as answer:
        assert answer.status == 200
        engine.go.set()
        said = (await answer.read()).partition(b": antefix-answer ")[2]
    head, _, body = said.partition(b"\n\n")
    assert head == b"%d 500" % len(body)
    assert json.loads(body) == {"error": "it failed"}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_lost_engine_interrupts_the_answer(
    engine: Engine, http: aiohttp.ClientSession, stream: bool
) -> None:
    engine.dies_after, engine.go = 3, asyncio.Event()
    async with http.post(PATH, json={"stream": stream}, headers=ASKED) as answer:
        assert answer.status == 200
        came = await answer.content.readuntil(b"\n\n")
        engine.go.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            while part := await answer.content.readany():
                came += part
    assert b": antefix-tokens 0 12" in came
    assert b"see above" not in came


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("exact_events", [True, False])
async def test_an_engine_that_fails_during_the_replay_does_not_refuse_to_resume(
    engine: Engine, http: aiohttp.ClientSession, is_lost: bool, exact_events: bool
) -> None:
    """So that a gateway tries another engine."""
    engine.dies_replaying, engine.fails_replaying = is_lost, not is_lost
    engine.exact_events = exact_events
    body = resuming(3, events=4, stream=True)
    async with http.post(PATH, json=body, headers=ASKED) as answer:
        error = EngineError(answer.status, await answer.read())
    assert error.status == 500
    assert error.is_dead == is_lost


async def test_an_answer_that_the_engine_does_not_offer_to_resume_is_unchanged(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    engine.offers = False
    for body in ({}, {"stream": True}):
        async with http.post(PATH, json=body, headers=ASKED) as answer:
            assert answer.status == 200
            assert RESUMABLE_HEADER not in answer.headers
            assert b"antefix-tokens" not in await answer.read()
    async with http.post("/v1/embeddings", json={}, headers=ASKED) as answer:
        assert RESUMABLE_HEADER not in answer.headers


async def refused(http: aiohttp.ClientSession, body: dict[str, Any], path: str = PATH) -> str:
    async with http.post(path, json=body, headers=ASKED) as answer:
        assert answer.status == 409
        error = (await answer.json())["error"]
    assert error["code"] == "cannot_resume"
    return str(error["message"])


async def test_an_answer_that_cannot_be_resumed_is_refused(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    assert "/v1/embeddings" in await refused(http, resuming(1, 1), "/v1/embeddings")
    assert "another release" in await refused(http, {RESUME_FIELD: {}})
    engine.exact_events = True
    assert "logprobs" in await refused(http, resuming(3, 1, stream=True))
    engine.exact_events, engine.loses_events = False, True
    assert "other events" in await refused(http, resuming(1, 1, stream=True))
