"""Open loop: only the next turn of the same conversation waits for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.harness.load.conversation_player import PATH, Answer, Style, play
from cli.gateway.stream_client import Endpoint
from loadgen.workloads import ChatTurn, Conversation, Message

HEADERS = {
    "x-antefix-policy": "random",
    "x-antefix-replica": "r1",
    "x-antefix-prompt-tokens": "300",
    "x-antefix-cached-tokens": "128",
    "x-antefix-predicted-ttft-ms": "250.0",
    "x-antefix-cached-tokens-predicted": "256",
}
STYLE = Style("small", "random", "salt")


def conversation_of(name: str, turns: int = 1) -> Conversation:
    return Conversation(name, 0.0, (ChatTurn((Message("user", "hello"),)),) * turns)


class FakeGateway:
    """Answers when `may_answer` lets it; `seen` are the requests in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.arrived = asyncio.Condition()
        self.may_answer: Callable[[], bool] = lambda: True
        self.end = b"data: [DONE]\n\n"
        self.status = 200
        self.headers = HEADERS

    async def answer(self, request: web.Request) -> web.StreamResponse:
        async with self.arrived:
            self.seen.append((request.headers["x-session-id"], await request.json()))
            self.arrived.notify_all()
            await self.arrived.wait_for(self.may_answer)
        if self.status != 200:
            return web.Response(status=self.status, text="no")
        stream = web.StreamResponse(headers=self.headers)
        await stream.prepare(request)
        await stream.write(b"data: {}\n\n")
        await stream.write(self.end)
        return stream

    async def play(self, *talks: Conversation) -> list[Answer | str]:
        async with self._serving() as endpoint, aiohttp.ClientSession() as http:
            return await asyncio.wait_for(play(http, endpoint, STYLE, talks), 30)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[Endpoint]:
        app = web.Application()
        app.router.add_post(PATH, self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield Endpoint("fake", f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()


async def test_a_late_answer_delays_no_arrival() -> None:
    gateway = FakeGateway()
    gateway.may_answer = lambda: len(gateway.seen) == 3
    outcomes = await gateway.play(conversation_of("a"), conversation_of("b"), conversation_of("c"))
    assert [type(outcome) for outcome in outcomes] == [Answer] * 3


async def test_a_turn_is_sent_after_the_answer_to_the_previous_one() -> None:
    gateway = FakeGateway()
    first, second = await gateway.play(conversation_of("a", turns=2))
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert second.due >= first.ended


async def test_an_answer_has_the_figures_of_the_gateways_headers() -> None:
    (answer,) = await FakeGateway().play(conversation_of("a"))
    assert isinstance(answer, Answer)
    assert (answer.conversation, answer.turn, answer.replica) == ("a", 0, "r1")
    assert (answer.prompt_tokens, answer.cached_tokens) == (300, 128)
    assert (answer.expected_cached_tokens, answer.predicted_ttft_s) == (256, 0.25)
    assert 0.0 <= answer.due <= answer.started <= answer.first_byte <= answer.ended


async def test_a_request_names_its_session_and_keeps_its_cache_apart() -> None:
    gateway = FakeGateway()
    await gateway.play(conversation_of("a"))
    ((session, body),) = gateway.seen
    assert session == "a"
    assert body["cache_salt"] == "salt"


async def test_an_interrupted_stream_is_a_failure() -> None:
    gateway = FakeGateway()
    gateway.end = b""
    (outcome,) = await gateway.play(conversation_of("a"))
    assert isinstance(outcome, str)


async def test_a_conversation_continues_after_a_failure() -> None:
    gateway = FakeGateway()
    gateway.status = 503
    outcomes = await gateway.play(conversation_of("a", turns=2))
    assert [type(outcome) for outcome in outcomes] == [str] * 2


async def test_an_answer_of_another_policy_is_a_failure() -> None:
    gateway = FakeGateway()
    gateway.headers = HEADERS | {"x-antefix-policy": "prefix"}
    (outcome,) = await gateway.play(conversation_of("a"))
    assert isinstance(outcome, str)
    assert "placed by prefix" in outcome


async def test_an_answer_without_prompt_figures_is_a_failure() -> None:
    gateway = FakeGateway()
    gateway.headers = {k: v for k, v in HEADERS.items() if "prompt" not in k}
    (outcome,) = await gateway.play(conversation_of("a"))
    assert isinstance(outcome, str)
