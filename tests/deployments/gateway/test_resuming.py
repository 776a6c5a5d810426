"""An engine is lost in the middle of an answer: its client gets a gap, and then the rest of it."""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from starlette.responses import JSONResponse

from deployments.gateway.answer import one_try
from deployments.gateway.api.limits import FATAL_REQUEST_S
from deployments.wire.headers import RESUMABLE_HEADER, RESUME_FIELD
from deployments.wire.resumable import Known
from tests.contract import events_of
from tests.fakes.engine import FIRST_TOKEN_ID, FakeEngine
from tests.fakes.front import OTHER_KEY, Front, gateway_before
from tests.sentences import assert_sentences
from tests.waiting import until

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
ID = {"x-request-id": "abc"}
DEATH = b"EngineCore encountered an issue. See stack trace (above) for the root cause."
TOKENS = 5
COMMENT = b": antefix-resumed continued\n\n"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's 5 s are over, too, while this process has no core."""
    monkeypatch.setattr(one_try, "PLACE_AGAIN_S", 60.0)


async def ask(front: Front, path: str = CHAT, **fields: Any) -> bytes:
    """What the client gets of an answer that must be complete."""
    body = {"max_tokens": TOKENS, "stream": True, **fields}
    if path == COMPLETIONS:
        body["prompt"] = "hello"
    async with front.post(path, headers=ID, **body) as answer:
        assert answer.status == 200
        return bytes(await answer.read())


def without_creation_times(answer: bytes, *engines: FakeEngine) -> bytes:
    """Without the times at which its engines began it: one time in it, whosever it is."""
    found = [engine for engine in engines if str(engine.created).encode() in answer]
    if re.search(rb'"type": ?"message', answer):  # messages have none
        return answer
    assert len(found) == 1
    return answer.replace(str(found[0].created).encode(), b"0")


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """The last event, which is an error in our words."""
    text = await answer.read()
    assert DEATH not in text
    error: dict[str, Any] = json.loads(text.split(b"data: ")[-1])["error"]
    assert_sentences(error["message"])
    return error


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
async def test_a_resumed_answer_equals_an_uninterrupted_answer_at_every_cut(
    front: Front, first: FakeEngine, second: FakeEngine, path: str, stream: bool
) -> None:
    usage = {"stream_options": {"include_usage": True}} if stream and path != MESSAGES else {}
    whole = await ask(front, path, stream=stream, **usage)
    expected = without_creation_times(whole, first, second)
    # within events and comments, between them, before [DONE] and after all choices have ended
    cuts = range(0, len(whole) + 200, 41)
    for cut in cuts:
        first.cuts = second.cuts = [cut]
        again = await ask(front, path, stream=stream, **usage)
        assert without_creation_times(again, first, second) == expected, cut
        assert not first.cuts
    assert len(first.resumed_with) + len(second.resumed_with) >= len(cuts) - 6
    await until(lambda: front.handle.slots_taken == first.running == second.running == 0)


async def test_the_next_engine_receives_the_clients_events_and_the_generated_tokens(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    first.dies_after = 3
    answer = await ask(front)
    assert answer.count(b"t3 ") == answer.count(b"t4 ") == 1
    assert str(second.created).encode() not in answer
    chunks = tuple((0, (FIRST_TOKEN_ID + number,)) for number in range(3))
    assert second.resumed_with == [Known(chunks, 4, 0, first.created, "1")]
    assert [headers["x-request-id"] for headers in first.headers + second.headers] == ["abc"] * 2
    assert json.loads(second.bodies[0]) == json.loads(first.bodies[0])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_resumed_answer_is_counted_as_one_request(
    front: Front,
    first: FakeEngine,
    second: FakeEngine,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first.dies_after = 3
    learned: list[float] = []
    observe = front.pool.scheduler.correction.observe

    def observed(predicted: float, observed: float, *how: int) -> None:
        learned.append(observed)
        observe(predicted, observed, *how)

    monkeypatch.setattr(front.pool.scheduler.correction, "observe", observed)
    await ask(front, stream=stream)
    metrics = await front.metrics()
    assert metrics["antefix_resumed_total", "exact", "resumed"] == 1
    assert metrics["antefix_requests_total", "ok", "interactive"] == 1
    assert metrics["antefix_output_tokens_total",] == TOKENS
    assert metrics["antefix_ttft_seconds_count", "interactive"] == 1
    assert len(learned) == 1
    if stream:  # the gap is one of its gaps
        assert metrics["antefix_inter_token_latency_seconds_count",] >= 1
    await until(lambda: not front.pool.scheduler.has_work)


async def test_an_explanation_names_the_engine_that_resumed(
    first: FakeEngine, second: FakeEngine, redis_url: str
) -> None:
    # who goes on does not make the token after which it would die
    first.dies_after = second.dies_after = 2
    async with gateway_before(first, second, redis_url=redis_url) as front:
        async with front.post(stream=True, max_tokens=TOKENS) as answer:
            headers, events = answer.headers, await events_of(answer)
        assert events[-1] == "[DONE]"
        async with asyncio.timeout(60):
            while "resumed" not in (explanation := await front.explanation_of(headers)):  # noqa: ASYNC110  # each look is a request
                await asyncio.sleep(0.01)
        assert explanation["replica"] == headers["x-antefix-replica"]
        resumed = explanation["resumed"]
        assert {explanation["replica"], resumed["replica"]} == {"r1", "r2"}
        assert resumed["tokens"] == 2
        assert resumed["waited_s"] > 0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_resumed_stream_marks_where_tokens_may_differ(
    front: Front, first: FakeEngine, second: FakeEngine, path: str
) -> None:
    whole = await ask(front, path)
    first.resumes_exactly = second.resumes_exactly = False
    front.sees(first, second)
    assert COMMENT not in await ask(front, path)
    first.dies_after = 3
    front.sees(first, second)
    answer = await ask(front, path)
    before, after = answer.split(COMMENT)
    assert b"t3 " in before and b"t4 " in after
    assert without_creation_times(before + after, first, second) == without_creation_times(
        whole, first, second
    )
    metrics = await front.metrics()
    assert metrics["antefix_resumed_total", "continued", "resumed"] == 1
    assert metrics["antefix_resumed_total", "exact", "resumed"] == 0


async def test_a_header_of_a_resumed_unstreamed_answer_states_that_tokens_may_differ(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    first.dies_after, second.resumes_exactly = 3, False
    async with front.post(max_tokens=TOKENS) as answer:
        assert answer.headers["x-antefix-resumed"] == "continued"
        assert "t5 " in await answer.text()


async def test_a_restarted_answer_has_all_of_its_tokens_from_one_engine(
    first: FakeEngine, second: FakeEngine
) -> None:
    third = FakeEngine("r3")
    first.dies_after, second.dies_after = 2, 4
    second.resumes_exactly, third.refuses_to_resume = False, True
    async with (
        gateway_before(first, second, third, retries=2) as front,
        front.post(max_tokens=TOKENS) as answer,
    ):
        assert answer.status == 200
        assert "x-antefix-resumed" not in answer.headers
        assert len(third.bodies) == 2


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_engine_that_reports_its_own_death_counts_as_lost(
    front: Front, first: FakeEngine, second: FakeEngine, path: str
) -> None:
    expected = without_creation_times(await ask(front, path), first, second)
    first.tells_death_after = 2
    front.sees(first, second)
    assert without_creation_times(await ask(front, path), first, second) == expected
    assert second.resumed_with


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_cannot_be_resumed_ends_with_an_antefix_error(
    front: Front, first: FakeEngine, second: FakeEngine, stream: bool
) -> None:
    first.offers_resumable, first.tells_death_after = False, 2
    if not stream:
        death = {"error": {"message": DEATH.decode(), "code": 500}}
        first.answers = second.answers = JSONResponse(death, status_code=500)
    async with front.post(stream=stream, max_tokens=TOKENS) as answer:
        error = await error_of(answer)
    assert error["code"] == ("engine_unavailable" if stream else "engines_lost")
    assert not second.resumed_with
    metrics = await front.metrics()
    assert metrics["antefix_resumed_total", "", "impossible"] == stream


@pytest.mark.parametrize("is_old", [True, False])
async def test_a_stream_that_the_next_engine_cannot_resume_ends_with_an_antefix_error(
    front: Front, first: FakeEngine, second: FakeEngine, is_old: bool
) -> None:
    first.dies_after = 2
    # one of an older release begins anew, and says nothing
    second.offers_resumable, second.refuses_to_resume = not is_old, not is_old
    async with front.post(stream=True, max_tokens=TOKENS) as answer:
        events = await events_of(answer)
    assert "t2 " in events[-2]
    assert json.loads(events[-1])["error"]["code"] == "engine_unavailable"
    metrics = await front.metrics()
    assert metrics["antefix_resumed_total", "", "rejected"] == 1
    assert metrics["antefix_output_tokens_total",] == 2
    assert len(second.bodies) == 1


async def test_an_unstreamed_answer_restarts_if_it_cannot_be_resumed(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    expected = without_creation_times(await ask(front, stream=False), first, second)
    first.dies_after, second.refuses_to_resume = 2, True
    front.sees(first, second)
    assert without_creation_times(await ask(front, stream=False), first, second) == expected
    assert len(second.bodies) == 2
    assert (await front.metrics())["antefix_resumed_total", "", "rejected"] == 1


async def test_a_request_that_was_running_in_two_lost_engines_is_rejected(
    front: Front, first: FakeEngine, second: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first.dies_after, second.dies_after = 2, 3
    async with front.post(stream=True, max_tokens=TOKENS) as answer:
        assert (await error_of(answer))["code"] == "engines_lost"
    assert (await front.metrics())["antefix_resumed_total", "", "failed"] == 1
    first.dies_after = second.dies_after = None
    front.sees(first, second)
    for _ in range(2):
        async with front.post(stream=True, max_tokens=TOKENS) as answer:
            assert answer.status == 503
            assert 0 < int(answer.headers["retry-after"]) <= FATAL_REQUEST_S
            error = await error_of(answer)
        assert error["code"] == "engines_lost"
    assert (len(first.bodies), len(second.bodies)) == (1, 1)
    # neither another request, nor another tenant's same one
    async with front.post(stream=True, max_tokens=TOKENS + 1) as answer:
        assert (await events_of(answer))[-1] == "[DONE]"
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    async with front.post(stream=True, max_tokens=TOKENS, headers=other) as answer:
        assert (await events_of(answer))[-1] == "[DONE]"


async def test_the_fleet_file_may_allow_several_resumptions_of_an_answer(
    first: FakeEngine, second: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = FakeEngine("r3")
    first.dies_after, second.dies_after = 2, 4
    async with gateway_before(first, second, third, retries=2) as front:
        kept: list[dict[str, Any]] = []
        monkeypatch.setattr(
            front.gateway.parts.explanations, "keep", lambda tenant, of, told: kept.append(told)
        )
        answer = await ask(front, stream_options={"include_usage": True})
        assert answer.endswith(b"data: [DONE]\n\n")
        assert [answer.count(b"t%d " % token) for token in range(1, TOKENS + 1)] == [1] * TOKENS
        assert [len(known.chunks) for known in third.resumed_with] == [4]
        told = kept[-1]
        assert (told["replica"], told["resumed"]["replica"]) == ("r1", "r3")
        assert told["resumed"]["tokens"] == 4
        assert told["resumed"]["predicted_s"] > 0
        third.dies_after = 5
        front.sees(first, second, third)
        async with front.post(stream=True, max_tokens=TOKENS) as lost:
            assert (await error_of(lost))["code"] == "engines_lost"
        assert (await front.metrics())["antefix_resumed_total", "exact", "resumed"] == 1


async def test_an_explanation_names_the_engine_that_resumed_after_a_failed_try(
    first: FakeEngine, second: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = FakeEngine("r3")
    first.dies_after, second.dies_after = 2, 0
    async with gateway_before(first, second, third, retries=2) as front:
        kept: list[dict[str, Any]] = []
        monkeypatch.setattr(
            front.gateway.parts.explanations, "keep", lambda tenant, of, told: kept.append(told)
        )
        assert (await ask(front)).endswith(b"data: [DONE]\n\n")
        assert len(second.bodies) == 1
        assert kept[-1]["resumed"]["replica"] == "r3"


async def test_a_client_that_leaves_during_a_resumption_aborts_the_answer(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    first.dies_after, second.pauses_after = 2, 4
    answer = await front.post(stream=True, max_tokens=TOKENS).__aenter__()
    await until(lambda: second.running == 1)
    answer.close()
    await until(lambda: second.aborted == 1)
    await until(lambda: front.handle.slots_taken == 0)


async def test_a_deadline_that_passes_during_a_resumption_is_an_error_event(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    first.dies_after, second.pauses_after = 2, 0
    timeout = {"x-antefix-timeout": "2"}
    async with front.post(stream=True, max_tokens=TOKENS, headers=timeout) as answer:
        error = await error_of(answer)
    assert error["code"] == "deadline_exceeded"
    await until(lambda: first.running == second.running == front.handle.slots_taken == 0)


async def test_a_stream_that_no_engine_resumes_in_time_ends_with_an_error(
    front: Front, first: FakeEngine, second: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_try, "PLACE_AGAIN_S", 0.05)
    first.pauses_after = 2
    answer = await front.post(stream=True, max_tokens=TOKENS).__aenter__()
    front.handle.may_pick.clear()
    front.sees()
    front.pool.scheduler.board.update([])
    first.break_off()
    assert (await error_of(answer))["code"] == "engine_unavailable"
    assert (await front.metrics())["antefix_resumed_total", "", "failed"] == 1


async def test_clients_can_send_neither_the_key_nor_the_header(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    known = {"chunks": [], "events": 1, "cached_tokens": 0, "created": 1}
    sent: dict[str, Any] = {RESUME_FIELD: known}
    async with front.post(stream=True, **sent) as answer:
        assert answer.status == 400
        assert (await error_of(answer))["param"] == RESUME_FIELD
    asked = {RESUMABLE_HEADER: "2", "x-antefix-expected-cached": "9"}
    sent = {RESUME_FIELD: None}
    async with front.post(stream=True, headers=asked, **sent) as answer:
        assert (await events_of(answer))[-1] == "[DONE]"
        assert RESUMABLE_HEADER not in answer.headers
    assert [headers[RESUMABLE_HEADER] for headers in first.headers] == ["1"]
    assert not first.resumed_with


async def test_gateways_share_the_list_of_rejected_requests(redis_url: str) -> None:
    async with AsyncExitStack() as stack:
        fronts = []
        for name in ("r1", "r3"):
            engines = FakeEngine(name), FakeEngine(name + "0")
            for engine in engines:
                engine.dies_after = 0
            front = await stack.enter_async_context(gateway_before(*engines, redis_url=redis_url))
            fronts.append((front, engines))
        (here, _), (there, engines) = fronts
        async with here.post() as answer:
            assert (await error_of(answer))["code"] == "engines_lost"
        for front in (here, there):
            await front.gateway.parts.fatal.exchange()
        # both gateways know all four
        asked = [len(engine.bodies) for engine in engines]
        async with there.post() as answer:
            assert (await error_of(answer))["code"] == "engines_lost"
        assert [len(engine.bodies) for engine in engines] == asked
