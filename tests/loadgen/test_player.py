"""What is noted of a request is exactly what happened, by the clock of who answered."""

from __future__ import annotations

import aiohttp
import pytest

from loadgen import summary
from loadgen.player import PlannedRequest, PlannedSession, Player, SentRequest
from tests.loadgen.played_api import DONE, PlayedApi, PlayedClock, delta, event, usage

PATH = "/chat/completions"
HEADERS = {"authorization": "Bearer sk-test"}


def session(name: str, arrives_at: float, *think_s: float) -> PlannedSession:
    requests = [PlannedRequest(PATH, lambda: {"model": "small"}, think_s=s) for s in think_s]
    return PlannedSession(name, arrives_at, requests)


async def played(
    api: PlayedApi, clock: PlayedClock, *sessions: PlannedSession, timeout_s: float = 60.0
) -> list[SentRequest]:
    async with api.serving() as url, aiohttp.ClientSession() as http:
        return await Player(http, url, HEADERS, timeout_s, clock).play(sessions)


async def test_every_latency_is_measured_from_the_time_a_request_was_due() -> None:
    clock = PlayedClock(late_s=0.25)
    script = [
        (1.5, delta(role="assistant", content="")),
        (2.0, delta(content="The")),
        (2.5, delta(content="")),
        (3.5, delta(content="end")),
        (3.75, usage(prompt=200, output=4, cached=128)),
        (4.0, DONE),
        (4.5, b""),
    ]
    (sent,) = await played(PlayedApi(clock, script), clock, session("a", 1.0, 0.0))
    assert (sent.error, sent.status) == (None, 200)
    assert (sent.due_s, sent.sent_s, sent.first_byte_s, sent.ended_s) == (1.0, 1.25, 1.5, 4.5)
    assert summary.late_s(sent) == 0.25
    assert summary.ttft_s(sent) == 1.0
    assert summary.gaps_s(sent) == [0.5, 1.0]
    # four tokens by the server's count, of which two arrived at once
    assert summary.tpot_s(sent) == 0.5
    assert summary.e2e_s(sent) == 3.5
    assert (sent.prompt_tokens, sent.output_tokens, sent.cached_tokens) == (200, 4, 128)
    assert sent.headers == {"x-antefix-replica": "r1"}


async def test_a_turn_is_due_after_the_users_think_time() -> None:
    clock = PlayedClock()
    api = PlayedApi(clock, [(3.0, delta(content="x")), (3.0, DONE)])
    first, second = await played(api, clock, session("a", 1.0, 0.0, 2.5))
    assert (first.turn, first.due_s, first.ended_s) == (0, 1.0, 3.0)
    assert (second.turn, second.due_s) == (1, 5.5)


async def test_outcomes_are_in_the_order_of_the_sessions() -> None:
    clock = PlayedClock()
    api = PlayedApi(clock, [(9.0, delta(content="x")), (9.0, DONE)])
    found = await played(api, clock, session("late", 2.0, 0.0), session("soon", 1.0, 0.0))
    assert [sent.session for sent in found] == ["late", "soon"]


async def test_an_antefix_server_returns_cached_tokens_in_a_header() -> None:
    clock = PlayedClock()
    api = PlayedApi(clock, [(1.0, delta(content="x")), (1.0, usage(200, 1)), (1.0, DONE)])
    api.headers |= {"X-Antefix-Cached-Tokens": "64"}
    (sent,) = await played(api, clock, session("a", 0.0, 0.0))
    assert sent.cached_tokens == 64


@pytest.mark.parametrize(
    ("written", "kind", "says"),
    [
        (delta(content="x"), "incomplete", "before its end"),
        (b'{"choices": []}', "incomplete", "is it a stream?"),
        (event(error={"message": "no engine"}), "stream_error", "no engine"),
        (b"data: {oops\n\n", "malformed", "{oops"),
    ],
)
async def test_an_incomplete_stream_is_an_error(written: bytes, kind: str, says: str) -> None:
    clock = PlayedClock()
    script = [(1.0, written)]
    (sent,) = await played(PlayedApi(clock, script), clock, session("a", 0.0, 0.0))
    assert (sent.status, sent.error) == (200, kind)
    assert says in sent.reason


async def test_a_rejection_is_an_error_with_the_servers_message_and_retry_after() -> None:
    clock = PlayedClock()
    api = PlayedApi(clock, [])
    api.refusal = 429, {"error": {"message": "too many"}}, {"Retry-After": "3"}
    first, second = await played(api, clock, session("a", 0.0, 0.0, 1.0))
    assert (first.status, first.error, first.reason) == (429, "http_429", "too many")
    assert first.headers == {"retry-after": "3"}
    # the conversation goes on
    assert second.due_s == 1.0


async def test_an_answer_that_never_ends_is_a_timeout() -> None:
    clock = PlayedClock()
    api = PlayedApi(clock, [(1.0, delta(content="x"))])
    api.never_ends = True
    (sent,) = await played(api, clock, session("a", 0.0, 0.0), timeout_s=0.5)
    assert sent.error == "timeout"


async def test_a_refused_connection_is_an_error_too() -> None:
    clock = PlayedClock()
    async with aiohttp.ClientSession() as http:
        player = Player(http, "http://127.0.0.1:9/v1", HEADERS, 60.0, clock)
        (sent,) = await player.play([session("a", 0.0, 0.0)])
    assert (sent.status, sent.error) == (0, "connect")
    assert (player.sent, player.ended, player.failed) == (1, 1, 1)
