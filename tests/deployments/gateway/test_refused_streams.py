"""A request that an engine refuses gets the same answer, whether it is streamed or not."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.contract import events_of
from tests.deployments.gateway.answer.test_relay import error_of
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front
from tests.waiting import until

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOLD = {"message": "token_id 999999 is out of range", "type": "BadRequestError"}
REFUSAL = {**TOLD, "param": "logit_bias", "code": 400}
DONE = b"data: [DONE]\n\n"
CREATED = b'event: response.created\ndata: {"type": "response.created", "sequence_number": 0}\n\n'
DELTA = (
    b"event: response.output_text.delta\n"
    b'data: {"type": "response.output_text.delta", "delta": "a", "sequence_number": 1}\n\n'
)


def refused(path: str, **error: Any) -> bytes:
    """As vLLM's stream reports it."""
    told = {**REFUSAL, **error}
    if path == RESPONSES:
        data = json.dumps({"type": "error", "sequence_number": 1, "error": told}).encode()
        return b"event: error\ndata: " + data + b"\n\n"
    return b"data: " + json.dumps({"error": told}).encode() + b"\n\n" + DONE


def stream(*pieces: bytes, slowly: bool = False) -> Response:
    async def said() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(0.05 if slowly else 0)

    return StreamingResponse(said(), media_type="text/event-stream")


@pytest.mark.parametrize("slowly", [True, False])
@pytest.mark.parametrize(
    ("path", "before"),
    [
        (CHAT, b""),
        (CHAT, b": keep-alive\n\n"),
        (COMPLETIONS, b""),
        (RESPONSES, b""),
        (RESPONSES, CREATED),
        (RESPONSES, CREATED + CREATED.replace(b"created", b"in_progress")),
    ],
)
async def test_an_error_in_the_first_event_becomes_the_status_of_the_answer(
    front: Front, first: FakeEngine, path: str, before: bytes, slowly: bool
) -> None:
    first.answers = JSONResponse({"error": REFUSAL}, status_code=400)
    async with front.post(path) as answer:
        plain = answer.status, await error_of(answer)
    blocks = [block + b"\n\n" for block in before.split(b"\n\n")[:-1]]
    first.answers = stream(*blocks, refused(path), slowly=slowly)
    async with front.post(path, stream=True) as answer:
        assert answer.headers["content-type"] == "application/json"
        assert "x-antefix-ttft-ms" not in answer.headers
        assert (answer.status, await error_of(answer)) == plain
    assert plain[0] == 400


async def test_a_rejected_stream_counts_as_a_client_error(front: Front, first: FakeEngine) -> None:
    first.answers = stream(refused(CHAT))
    async with front.post(stream=True) as answer:
        assert answer.status == 400
    await until(lambda: front.counted()["antefix_requests_total", "invalid", "interactive"] == 1)
    metrics = await front.metrics()
    names = {"antefix_slo_events_total", "antefix_ttft_seconds_count", "antefix_requests_total"}
    counted = {of for of, number in metrics.items() if of[0] in names and number}
    assert counted == {("antefix_requests_total", "invalid", "interactive")}


async def test_an_engine_that_fails_with_its_first_event_is_replaced(
    front: Front, first: FakeEngine, second: FakeEngine
) -> None:
    first.answers = stream(refused(CHAT, code=500, message="secret"))
    async with front.post(stream=True) as answer:
        assert answer.status == 200
        assert (await events_of(answer))[-1] == "[DONE]"
    assert len(second.bodies) == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_engine_error_in_mid_stream_is_converted_to_an_antefix_error(
    front: Front, first: FakeEngine, path: str
) -> None:
    token = b'data: {"choices": [{"text": "a"}]}\n\n'
    first.answers = stream(token, refused(path))
    async with front.post(path, stream=True) as answer:
        assert answer.status == 200
        events = await events_of(answer)
    assert json.loads(events[-1]) == {
        "error": {
            "message": TOLD["message"],
            "type": "invalid_request_error",
            "param": "logit_bias",
            "code": "invalid_value",
        }
    }
    assert len(events) == 2


async def test_an_error_event_of_a_response_continues_its_sequence_numbers(
    front: Front, first: FakeEngine
) -> None:
    first.answers = stream(CREATED, DELTA, refused(RESPONSES))
    async with front.post(RESPONSES, stream=True) as answer:
        assert answer.status == 200
        said = await answer.read()
    assert said.startswith(CREATED + DELTA + b"event: error\n")
    last = json.loads(said.rpartition(b"data: ")[2])
    assert (last["type"], last["code"], last["sequence_number"]) == ("error", "invalid_value", 2)
    assert last["error"]["param"] == last["param"] == "logit_bias"


async def test_a_deadline_in_a_response_is_an_event_of_its_api(
    front: Front, first: FakeEngine
) -> None:
    never = asyncio.Event()

    async def said() -> AsyncIterator[bytes]:
        yield CREATED
        yield DELTA
        await never.wait()

    first.answers = StreamingResponse(said(), media_type="text/event-stream")
    headers = {"x-antefix-timeout": "2"}
    async with front.post(RESPONSES, headers=headers, stream=True) as answer:
        text = await answer.read()
    last = json.loads(text.rpartition(b"data: ")[2])
    assert b"event: error\n" in text
    assert (last["code"], last["sequence_number"]) == ("deadline_exceeded", 2)
    await until(lambda: first.running == 0)
