"""One request through a real gateway to fake engines, over real HTTP."""

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse, Response, StreamingResponse

from deployments.gateway.answer import recovery
from deployments.gateway.api.limits import FATAL_REQUEST_S
from deployments.gateway.attempt.engine_attempt import EngineAttempt
from router.choice import placement
from tests.contract import events_of
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front
from tests.router.loads import changed
from tests.sentences import assert_sentences
from tests.some import some
from tests.waiting import until

# At least.
BYTES_OF_A_CANDIDATE = 100
SALT = re.compile(rb',"cache_salt":"[^"]+"}')


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    error: dict[str, Any] = (await answer.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    if error["code"] != "invalid_value":  # that is the engine's own word
        assert_sentences(str(error["message"]))
    return error


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


async def test_the_engine_receives_exactly_the_bytes_that_the_client_sent(
    front: Front, first: FakeEngine
) -> None:
    headers = {**front.headers, "content-type": "application/json"}
    loop = asyncio.get_running_loop()

    async def send(body: bytes) -> None:
        front.sees(first)
        async with front.http.post(
            front.url + "/v1/completions", data=body, headers=headers
        ) as answer:
            assert answer.status == 200
            await answer.read()
        # and a field of Antefix after them
        assert SALT.fullmatch(first.bodies[-1].removeprefix(body.removesuffix(b"}")))

    @settings(
        max_examples=settings().max_examples // 2,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(extra=st.dictionaries(st.text(), json_values, max_size=4), ascii_only=st.booleans())
    def check(extra: dict[str, object], ascii_only: bool) -> None:
        stop = {"stop": [], "stop_token_ids": [], "bad_words": [], "stream": False}
        fields = {**stop, "model": MODEL, "prompt": "p", "max_tokens": 1, "metadata": extra}
        body = json.dumps(fields, ensure_ascii=ascii_only).encode()
        asyncio.run_coroutine_threadsafe(send(body), loop).result(60)

    await asyncio.to_thread(check)


async def test_the_client_receives_exactly_the_bytes_of_the_engine(
    front: Front, first: FakeEngine
) -> None:
    said = b"data: \xf0\x9f\x8e\x89 \x00 not quite JSON\r\n\r\n" * 2000
    first.answers = Response(said, media_type="text/event-stream")
    async with front.post(stream=True) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert await answer.read() == said


async def test_text_that_mentions_a_token_comment_reaches_the_client_unchanged(
    front: Front, first: FakeEngine
) -> None:
    said = b"data: " + json.dumps({"text": "a: antefix-output-tokens 7\n\nb"}).encode() + b"\n\n"
    first.answers = Response(said + b"data: [DONE]\n\n", media_type="text/event-stream")
    async with front.post(stream=True) as answer:
        assert await answer.read() == said + b"data: [DONE]\n\n"


async def test_the_first_token_is_relayed_before_the_engine_generates_the_second(
    front: Front, first: FakeEngine
) -> None:
    first.pauses_after = 1
    async with front.post(stream=True) as answer:
        async with asyncio.timeout(60):
            role = await answer.content.readuntil(b"\n\n")
            token = await answer.content.readuntil(b"\n\n")
        assert b"assistant" in role
        assert b"t1" in token
        assert first.running == 1
        first.go_on.set()
        assert (await events_of(answer))[-1] == "[DONE]"


async def test_a_running_answer_keeps_no_list_of_candidates(
    front: Front, first: FakeEngine
) -> None:
    """Each lives for the time of its answer, and their number is streams times replicas."""
    replicas, streams = 200, 10
    few = replicas * streams / 4
    load = first.load()
    others = [
        changed(load, replica_id=f"o{slot}", slot=slot, queued_prefill_tokens=9000)
        for slot in range(100, 100 + replicas)
    ]
    front.pool.scheduler.board.update([load, *others])
    first.pauses_after = 1
    tracemalloc.start()
    try:
        answers = [await front.post(stream=True).__aenter__() for _ in range(streams)]
        await until(lambda: bytes_made_in(placement) < few * BYTES_OF_A_CANDIDATE)
    finally:
        tracemalloc.stop()
        first.go_on.set()
    for answer in some(answers):
        assert (await events_of(answer))[-1] == "[DONE]"


def bytes_made_in(module: ModuleType) -> int:
    """Return the size of what the module has allocated and not freed."""
    ours = [tracemalloc.Filter(True, str(module.__file__))]
    traced = tracemalloc.take_snapshot().filter_traces(ours)
    return sum(of.size for of in traced.statistics("filename"))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_aborts_the_generation(
    front: Front, first: FakeEngine, stream: bool
) -> None:
    first.pauses_after = 1
    request = asyncio.ensure_future(front.post(stream=stream).__aenter__())
    await until(lambda: first.running == 1)
    if stream:
        (await request).close()
    else:
        request.cancel()
    await until(lambda: first.aborted == 1)
    await until(lambda: front.handle.slots_taken == 0)


async def test_a_deadline_before_the_first_byte_is_a_504(front: Front, first: FakeEngine) -> None:
    first.pauses_after = 1
    async with front.post(headers={"x-antefix-timeout": "2"}) as answer:
        assert answer.status == 504
        # OpenAI's clients would send it twice more
        assert answer.headers["x-should-retry"] == "false"
        error = await error_of(answer)
    assert (error["code"], error["type"]) == ("deadline_exceeded", "server_error")
    assert "within 2 s" in error["message"]
    assert (
        "You can raise the timeout to 60 s with the header x-antefix-timeout." in error["message"]
    )
    await until(lambda: first.aborted == 1)


async def test_a_deadline_in_a_stream_is_an_error_event(front: Front, first: FakeEngine) -> None:
    first.pauses_after = 1
    async with front.post(stream=True, headers={"x-antefix-timeout": "2"}) as answer:
        assert answer.status == 200
        last = json.loads((await events_of(answer))[-1])
    assert last["error"]["code"] == "deadline_exceeded"
    await until(lambda: first.aborted == 1)


@pytest.mark.parametrize("media_type", ["text/event-stream", "application/json"])
async def test_a_client_that_reads_nothing_holds_no_task_past_its_deadline(
    front: Front, first: FakeEngine, media_type: str
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"data: " + bytes(100_000) + b"\n\n"
            await asyncio.sleep(0.001)

    first.answers = StreamingResponse(endless(), media_type=media_type)
    fields = {"model": MODEL, "prompt": "p", "stream": media_type != "application/json"}
    body = json.dumps(fields).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    head = f"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n"
    for name, value in {
        **front.headers,
        "content-type": "application/json",
        "x-antefix-timeout": "0.5",
    }.items():
        head += f"{name}: {value}\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    state = front.gateway.server.state
    await until(lambda: state.tasks)
    await until(lambda: not state.tasks)
    # on a busy machine it may have gone already, or had so little to read that it got all
    connections: list[Any] = [*state.connections]
    assert all(of.transport.is_closing() or of.cycle.response_complete for of in connections)
    writer.transport.abort()
    del reader


async def test_a_deadline_ends_the_wait_for_a_replica(front: Front) -> None:
    front.sees()
    front.handle.may_pick.clear()
    async with front.post(headers={"x-antefix-timeout": "0.2"}) as answer:
        assert answer.status == 504
    await until(lambda: front.handle.waiting == 0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [401, 403])
async def test_an_unexpected_server_at_a_replicas_address_fails_no_request(
    front: Front, first: FakeEngine, second: FakeEngine, status: int, stream: bool
) -> None:
    first.answers = JSONResponse({"error": {"message": "Whose are you?"}}, status)
    async with front.post(stream=stream) as answer:
        assert (answer.status, answer.headers["x-antefix-replica"]) == (200, "r2")
        await answer.read()
    assert (len(first.bodies), second.finished) == (1, 1)


async def test_an_unreachable_replica_is_a_503_to_retry(
    front: Front, first: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "NOTICED_S", 0.3)
    await first.stop()
    front.sees(first)
    front.handle.must_pick = first
    async with front.post() as answer:
        assert answer.status == 503
        assert (await error_of(answer))["code"] == "engine_unavailable"


async def test_two_failures_are_a_503_to_try_again(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    first.dies_after = second.dies_after = 0
    async with front.post() as answer:
        assert answer.status == 503
        assert answer.headers["retry-after"] == str(FATAL_REQUEST_S)
        error = await error_of(answer)
        assert error["code"] == "engines_lost"
        assert "a shorter prompt, a lower 'max_tokens' or 'n'" in error["message"]
        assert answer.headers["x-should-retry"] == "false"
    assert (len(first.bodies), len(second.bodies)) == (1, 1)


async def test_an_engines_404_is_a_400_that_names_the_address(front: Front) -> None:
    async with front.post("/v1/embeddings", input="x") as answer:
        assert answer.status == 400
        error = await error_of(answer)
    assert (error["code"], error["param"]) == ("unsupported_endpoint", "model")
    assert "/v1/embeddings" in str(error["message"])


async def test_an_engine_failure_shows_the_client_no_internals(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    failure = JSONResponse({"error": {"message": "Traceback: secret"}}, status_code=500)
    first.answers = second.answers = failure
    async with front.post(headers={"x-request-id": "abc"}) as answer:
        assert answer.status == 500
        message = str((await error_of(answer))["message"])
    assert "Traceback" not in message
    assert "abc" in message


async def test_an_engines_refusal_is_not_tried_again(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    async with front.post(max_tokens=-1) as answer:
        assert answer.status == 400
        assert (await error_of(answer))["param"] == "max_tokens"
    assert (len(first.bodies), len(second.bodies)) == (1, 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_begins_with_its_first_token(
    front: Front, first: FakeEngine, stream: bool
) -> None:
    first.pauses_after = 0
    request = asyncio.ensure_future(front.post(stream=stream).__aenter__())
    await until(lambda: first.running == 1)
    await asyncio.sleep(0.1)
    assert not request.done()
    first.go_on.set()
    assert (await request).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_retried_if_its_replica_dies_before_the_first_token(
    front: Front, first: FakeEngine, second: FakeEngine, stream: bool
) -> None:
    first.pauses_after = 0
    request = asyncio.ensure_future(front.post(stream=stream).__aenter__())
    await until(lambda: first.running == 1)
    first.break_off()
    answer = await request
    assert answer.status == 200
    assert answer.headers["x-antefix-replica"] == "r2"
    text = await answer.text()
    assert "error" not in text
    assert "t4" in text
    await until(lambda: front.handle.slots_taken == 0)


async def test_a_replica_that_failed_a_request_is_not_given_it_again(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    first.answers = JSONResponse({}, status_code=500)
    second.dies_after = 0
    async with front.post() as answer:
        assert answer.status == 503
    assert (len(first.bodies), len(second.bodies)) == (1, 1)


async def test_a_failed_trace_does_not_affect_the_answer_or_the_slot(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(_: EngineAttempt) -> None:
        raise RuntimeError("no facts")

    monkeypatch.setattr(EngineAttempt, "facts", property(facts))
    async with front.post() as answer:
        assert answer.status == 200
        await answer.read()
    await until(lambda: not front.pool.scheduler.has_work)
