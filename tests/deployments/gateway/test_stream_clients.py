"""Clients that people use find the errors of a stream: of Antefix, of the engine, first or
later."""

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import openai
import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, Front
from tests.npm_clients import errors_in_streams

MESSAGE = "token_id 999999 is out of range"
TOLD = {"message": MESSAGE, "type": "BadRequestError", "param": "logit_bias", "code": 400}
# What each ends with, and the code that its client finds.
ENDINGS = {
    "refused": "invalid_value",
    "refused later": "invalid_value",
    "lost": "engine_unavailable",
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "in_progress",
    "model": MODEL,
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


class Told(Response):
    """An engine's stream, of whichever API was asked, as vLLM writes it."""

    def __init__(self, ending: str) -> None:
        super().__init__()
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = StreamingResponse(self._events(scope["path"]), media_type="text/event-stream")
        await stream(scope, receive, send)

    async def _events(self, path: str) -> AsyncIterator[str]:
        is_response = path == "/v1/responses"
        if path == "/v1/messages":
            events = _of_a_message()
        else:
            events = _of_a_response() if is_response else _of_a_chat(path == "/v1/completions")
        for event in events if self._ending != "refused" else list(events)[: 2 * is_response]:
            yield event
        if self._ending == "lost":
            raise RuntimeError("the engine died")
        if path in ("/v1/messages", "/v1/responses"):
            error = {"type": "error", "error": TOLD}
            yield f"event: error\n{_data(error | ({'sequence_number': 4} if is_response else {}))}"
        else:
            yield _data({"error": TOLD})


def _data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


def _of_a_chat(is_completion: bool) -> Iterable[str]:
    kind = "text_completion" if is_completion else "chat.completion.chunk"
    said: dict[str, Any] = {"text": "a"} if is_completion else {"delta": {"content": "a"}}
    choice = {"index": 0, "finish_reason": None, "logprobs": None, **said}
    about = {"id": "1", "object": kind, "created": 1, "model": MODEL}
    yield _data({**about, "choices": [choice]})


def _of_a_message() -> Iterable[str]:
    message: dict[str, Any] = {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
    }
    message |= {"stop_reason": None, "usage": {"input_tokens": 1, "output_tokens": 0}}
    for kind, event in (
        ("message_start", {"message": message}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "a"}}),
    ):
        yield f"event: {kind}\n{_data({'type': kind, **event})}"


def _of_a_response() -> Iterable[str]:
    item = {"type": "message", "id": "msg_1", "status": "in_progress", "role": "assistant"}
    text = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "a", "logprobs": []}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": RESPONSE}),
        ("response.in_progress", {"response": RESPONSE}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "content": []}}),
        ("response.output_text.delta", text),
    ]
    for number, (kind, event) in enumerate(events):
        yield f"event: {kind}\n{_data({'type': kind, 'sequence_number': number, **event})}"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
async def test_openais_client_raises_the_error_of_a_stream(
    front: Front, first: FakeEngine, api: str, ending: str
) -> None:
    first.answers = Told(ending)
    client = openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=KEY, max_retries=0)
    with pytest.raises(openai.APIError) as raised:
        stream: Any
        if api == "chat":
            messages: Any = [{"role": "user", "content": "hi"}]
            stream = await client.chat.completions.create(
                model=MODEL, messages=messages, stream=True
            )
        elif api == "completions":
            stream = await client.completions.create(model=MODEL, prompt="hi", stream=True)
        else:
            stream = await client.responses.create(model=MODEL, input="hi", stream=True)
        async for _ in stream:
            pass
    await client.close()
    assert raised.value.code == ENDINGS[ending]
    assert isinstance(raised.value, openai.BadRequestError) == (ending == "refused")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_clients_from_npm_report_the_error_of_a_stream(
    front: Front, first: FakeEngine, ending: str
) -> None:
    first.answers = Told(ending)
    reported = await errors_in_streams(f"{front.url}/v1", KEY, MODEL)
    assert len(reported) == 8
    codes = {name: error and error["code"] for name, error in reported.items()}
    assert codes == dict.fromkeys(reported, ENDINGS[ending])
    if ending == "refused":
        assert {of["status"] for of in reported.values()} == {400}
    if ending != "lost":
        assert all(MESSAGE in of["message"] for of in reported.values())
