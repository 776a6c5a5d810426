"""What an engine's answer says of itself in its headers, over real HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from deployments.engine.serving.confirming import MESSAGE, Confirming
from deployments.process.http_server import HttpServer
from deployments.wire import confirmation
from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    ENGINE_TTFT_HEADER,
    EXPECTED_CACHED_HEADER,
    KV_SOURCE_HEADER,
    LOAD_HEADER,
    OUTPUT_TOKENS_HEADER,
    PROMPT_TOKENS_HEADER,
    RESUMABLE_HEADER,
    TICKET_HEADER,
    TIER_TOKENS_HEADER,
    TOKENS_PATH,
)
from router.board.load import LoadReport, ReplicaQueue
from tests.waiting import until

KEEP_ALIVE = b": keep-alive\n\n"
CONFIRMED = {PROMPT_TOKENS_HEADER, CACHED_TOKENS_HEADER, ENGINE_TTFT_HEADER}


class Engine:
    """Generates for any request, once `go` is set; `prompts` are (tokens, cached)."""

    def __init__(self) -> None:
        self.prompts = [(10, 4)]
        self.expected: list[int] = []
        self.tier_tokens = (0, 0, 0)
        self.kv_source = ""
        self.go = asyncio.Event()
        self.go.set()
        self.left = False
        self.stops = asyncio.Event()
        self.load = LoadReport(1, ReplicaQueue(2, 3, 400))
        self.url = ""
        routes = [
            Route("/whole", self._whole),
            Route("/stream", self._stream),
            Route("/fails", self._fails),
            Route("/slow", self._slow),
            Route("/left", self._left),
            Route("/dies", self._dies),
            Route("/other", self._other),
        ]
        self.server = HttpServer(Confirming(Starlette(routes=routes), lambda: self.load))

    async def _generate(self) -> None:
        exchange = confirmation.current.get()
        assert exchange is not None
        self.expected.append(exchange.expected_cached)
        self.tier_tokens, self.kv_source = exchange.tier_tokens, exchange.kv_source
        await self.go.wait()
        for prompt_tokens, cached_tokens in self.prompts:
            exchange.first_token(prompt_tokens, cached_tokens)

    async def _whole(self, request: Request) -> Response:
        await self._generate()
        return JSONResponse({})

    async def _stream(self, request: Request) -> Response:
        return StreamingResponse(self._events())

    async def _events(self) -> AsyncIterator[bytes]:
        await self._generate()
        for event in (b"one ", b"two ", b"three"):
            yield event

    async def _slow(self, request: Request) -> Response:
        """Three events of several tokens each; vLLM sends a comment while none comes."""

        async def events() -> AsyncIterator[bytes]:
            yield KEEP_ALIVE
            await self._generate()
            exchange = confirmation.current.get()
            assert exchange is not None
            for tokens, event in ((1, b"data: one\n\n"), (40, b"data: two\n\n")):
                exchange.generated(tokens)
                yield event
            yield KEEP_ALIVE
            yield b"data: three\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _left(self, request: Request) -> Response:
        """An event of one token; seven more come after it, the last while the engine stops."""

        async def events() -> AsyncIterator[bytes]:
            exchange = confirmation.current.get()
            assert exchange is not None
            exchange.call_began()
            try:
                await self._generate()
                exchange.generated(1)
                yield b"data: one\n\n"
                await asyncio.Event().wait()
            finally:
                self.left = True
                stopping = asyncio.create_task(self._stop(exchange))
                await asyncio.shield(stopping)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _stop(self, exchange: confirmation.Confirmation) -> None:
        await self.stops.wait()
        exchange.generated(7)
        exchange.call_ended()

    async def _fails(self, request: Request) -> Response:
        return PlainTextResponse("no", status_code=400)

    async def _dies(self, request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            raise RuntimeError("the engine died during the prefill")
            yield b""

        return StreamingResponse(events())

    async def _other(self, request: Request) -> Response:
        return JSONResponse({"tokens": [1]})


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    engine.url = await engine.server.start("127.0.0.1")
    yield engine
    engine.go.set()
    engine.stops.set()
    await engine.server.drain()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


@pytest.mark.parametrize("path", ["/whole", "/stream"])
async def test_an_answer_confirms_its_prompt_and_reports_the_load(
    engine: Engine, http: aiohttp.ClientSession, path: str
) -> None:
    async with http.get(engine.url + path) as answer:
        await answer.read()
    assert answer.headers[PROMPT_TOKENS_HEADER] == "10"
    assert answer.headers[CACHED_TOKENS_HEADER] == "4"
    assert float(answer.headers[ENGINE_TTFT_HEADER]) >= 0
    assert LoadReport.from_header(answer.headers[LOAD_HEADER]) == engine.load


async def test_several_prompts_add_up(engine: Engine, http: aiohttp.ClientSession) -> None:
    engine.prompts = [(10, 4), (20, 0), (5, 1)]
    async with http.get(engine.url + "/whole") as answer:
        told = answer.headers[PROMPT_TOKENS_HEADER], answer.headers[CACHED_TOKENS_HEADER]
    assert told == ("35", "5")


async def test_a_streams_headers_wait_for_its_first_token(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    engine.go.clear()
    answer = asyncio.ensure_future(http.get(engine.url + "/stream").__aenter__())
    await until(lambda: engine.expected)
    await asyncio.sleep(0.05)
    assert not answer.done()
    engine.load = LoadReport(
        2, ReplicaQueue(0, 1, 0)
    )  # the header reports the moment of the first token
    engine.go.set()
    assert LoadReport.from_header((await answer).headers[LOAD_HEADER]) == engine.load
    assert await (await answer).read() == b"one two three"


@pytest.mark.parametrize("asks_for_ids", [True, False])
async def test_a_streams_tokens_are_counted_before_its_events(
    engine: Engine, http: aiohttp.ClientSession, asks_for_ids: bool
) -> None:
    asked = {EXPECTED_CACHED_HEADER: "0", **({RESUMABLE_HEADER: "1"} if asks_for_ids else {})}
    async with http.get(engine.url + "/slow", headers=asked) as answer:
        assert await answer.read() == (
            b": antefix-output-tokens 1\n\ndata: one\n\n"
            b": antefix-output-tokens 41\n\ndata: two\n\n"
            b": keep-alive\n\ndata: three\n\n: antefix-output-tokens 41\n\n"
        )


async def test_a_comment_that_keeps_a_stream_alive_is_not_its_first_token(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    engine.go.clear()
    asked = http.get(engine.url + "/slow", headers={EXPECTED_CACHED_HEADER: "0"})
    answer = asyncio.ensure_future(asked.__aenter__())
    await until(lambda: engine.expected)
    assert not answer.done()
    engine.go.set()
    assert (await answer).headers[PROMPT_TOKENS_HEADER] == "10"


async def test_a_direct_client_of_an_engine_gets_the_stream_of_vllm(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    async with http.get(engine.url + "/slow") as answer:
        said = b"data: one\n\ndata: two\n\n" + KEEP_ALIVE + b"data: three\n\n"
        assert await answer.read() == KEEP_ALIVE + said


async def test_a_stream_that_fails_before_its_first_token_has_not_begun(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    async with http.get(engine.url + "/dies") as answer:
        assert answer.status == 500


async def test_an_answer_without_a_token_confirms_nothing_but_reports_the_load(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    async with http.get(engine.url + "/other") as answer:
        assert answer.status == 200
        assert not CONFIRMED & answer.headers.keys()
        assert LOAD_HEADER in answer.headers


@pytest.mark.parametrize(("path", "status"), [("/fails", 400), ("/no", 404)])
async def test_an_error_before_the_first_token_reports_that_nothing_was_generated(
    engine: Engine, http: aiohttp.ClientSession, path: str, status: int
) -> None:
    async with http.get(engine.url + path) as answer:
        assert answer.status == status
        assert answer.headers[OUTPUT_TOKENS_HEADER] == "0"
        assert LOAD_HEADER in answer.headers


@pytest.mark.parametrize(
    ("given", "expected"), [("384", 384), ("0", 0), ("", 0), ("-1", 0), ("many", 0), ("1.5", 0)]
)
async def test_the_engine_learns_what_the_gateway_expects_to_be_cached(
    engine: Engine, http: aiohttp.ClientSession, given: str, expected: int
) -> None:
    async with http.get(engine.url + "/whole", headers={EXPECTED_CACHED_HEADER: given}) as answer:
        assert answer.status == 200
    assert engine.expected == [expected]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("384 128 64", (384, 128, 64)),
        ("384 128", (384, 128, 0)),  # of an earlier release
        ("384", (384, 0, 0)),
        ("", (0, 0, 0)),
        ("-1 x", (0, 0, 0)),
        ("1 2 3 4", (1, 2, 3)),
    ],
)
async def test_the_engine_learns_what_the_gateway_expects_to_be_loaded(
    engine: Engine, http: aiohttp.ClientSession, given: str, expected: tuple[int, int, int]
) -> None:
    async with http.get(engine.url + "/whole", headers={TIER_TOKENS_HEADER: given}) as answer:
        assert answer.status == 200
    assert engine.tier_tokens == expected


async def test_the_engine_learns_from_which_replica_to_pull(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    for given in ("10.0.0.7:5600", ""):
        headers = {KV_SOURCE_HEADER: given} if given else {}
        async with http.get(engine.url + "/whole", headers=headers) as answer:
            assert answer.status == 200
        assert engine.kv_source == given


async def test_concurrent_exchanges_are_distinguished(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    engine.go.clear()

    async def ask(number: int) -> tuple[str, str]:
        given = {EXPECTED_CACHED_HEADER: str(number)}
        async with http.get(engine.url + "/whole", headers=given) as answer:
            return answer.headers[PROMPT_TOKENS_HEADER], answer.headers[CACHED_TOKENS_HEADER]

    asked = [asyncio.ensure_future(ask(number)) for number in range(8)]
    await until(lambda: len(engine.expected) == 8)
    engine.go.set()
    assert await asyncio.gather(*asked) == [("10", "4")] * 8
    assert sorted(engine.expected) == [*range(8)]
    assert confirmation.current.get() is None


async def tokens_of(http: aiohttp.ClientSession, engine: Engine, ticket: str) -> tuple[str, ...]:
    """Of a prompt, of those the cached ones, and of the answer."""
    async with http.get(engine.url + TOKENS_PATH, params={"ticket": ticket}) as answer:
        assert answer.status == 200
        names = (PROMPT_TOKENS_HEADER, CACHED_TOKENS_HEADER, OUTPUT_TOKENS_HEADER)
        return tuple(answer.headers[name] for name in names)


@pytest.mark.parametrize("asks_for_ids", [True, False])
async def test_a_gateway_that_leaves_learns_all_tokens_once_the_engine_has_stopped(
    engine: Engine, http: aiohttp.ClientSession, asks_for_ids: bool
) -> None:
    asked = {TICKET_HEADER: "t", **({RESUMABLE_HEADER: "1"} if asks_for_ids else {})}
    engine.stops.clear()
    async with http.get(engine.url + "/left", headers=asked) as answer:
        assert await answer.content.readuntil(b"data: one\n\n")
        counting = asyncio.create_task(tokens_of(http, engine, "t"))
        answer.close()
    await until(lambda: engine.left)
    assert not counting.done()
    engine.stops.set()
    assert await counting == ("10", "4", "8")


async def test_the_token_counts_of_an_unknown_exchange_are_zero(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    assert await tokens_of(http, engine, "never") == ("0", "0", "0")


class RequestLines:
    """Lines about ended requests, in the log of an engine that is asked with the text `PROMPT`."""

    PROMPT = b"words of a client"

    def __init__(self, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
        self._engine, self._caplog = engine, caplog

    async def asked(
        self, http: aiohttp.ClientSession, path: str, headers: dict[str, str]
    ) -> dict[str, object]:
        """Return what the latest line has, after one request more."""
        before = len(self.facts())
        async with http.get(self._engine.url + path, headers=headers, data=self.PROMPT) as answer:
            await answer.read()
        await until(lambda: len(self.facts()) > before)
        assert self.PROMPT.decode() not in self._caplog.text
        return self.facts()[-1]

    def facts(self) -> list[dict[str, object]]:
        ended = [record for record in self._caplog.records if record.getMessage() == MESSAGE]
        return [vars(record)["facts"] for record in ended]


@pytest.fixture
def lines(engine: Engine, caplog: pytest.LogCaptureFixture) -> RequestLines:
    caplog.set_level(logging.INFO, "deployments")
    return RequestLines(engine, caplog)


@pytest.mark.parametrize("resumable", ["0", "1"])
async def test_the_end_of_a_gateways_request_is_logged_with_its_id_and_counts(
    http: aiohttp.ClientSession, lines: RequestLines, resumable: str
) -> None:
    asked = {"x-request-id": "my-1", RESUMABLE_HEADER: resumable}
    facts = await lines.asked(http, "/slow", asked)
    times = [facts.pop(name) for name in ("ttft_s", "duration_s")]
    assert all(isinstance(seconds, float) and seconds >= 0 for seconds in times)
    assert facts == {
        "request_id": "my-1",
        "path": "/slow",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 41,
    }


async def test_a_request_that_failed_before_its_first_token_is_logged_without_counts(
    http: aiohttp.ClientSession, lines: RequestLines
) -> None:
    facts = await lines.asked(http, "/fails", {"x-request-id": "my-1"})
    assert facts.keys() == {"request_id", "path", "duration_s"}


async def test_a_request_without_an_id_is_not_logged(
    engine: Engine, http: aiohttp.ClientSession, lines: RequestLines
) -> None:
    async with http.get(engine.url + "/whole") as answer:
        assert answer.status == 200
    await lines.asked(http, "/whole", {"x-request-id": "my-1"})
    assert [facts["request_id"] for facts in lines.facts()] == ["my-1"]
