"""What vLLM's Anthropic API says of a failure, its gateway can read."""

import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engine.vllm.api_server.anthropic_messages import keep_error_facts, messages_facts
from deployments.gateway.attempt.engine_errors import EngineError, error_in
from deployments.gateway.intake.api_errors import from_engine
from deployments.prompt import MessagesFacts
from deployments.wire.inference_paths import MESSAGES
from deployments.wire.resumable import Known, ResumableExchange

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CHUNK = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3},
}
DONE = "data: [DONE]\n\n"


def data(chunk: Any) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def text_chunk(text: str) -> str:
    return data({**CHUNK, "choices": [{"index": 0, "delta": {"content": text}}]})


def serving() -> Any:
    """vLLM's, without an engine."""
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    made = object.__new__(AnthropicServingMessages)
    keep_error_facts(made)
    return made


async def converted(*chunks: str) -> list[str]:
    async def chat() -> AsyncGenerator[str, None]:
        for chunk in chunks:
            yield chunk

    return [event async for event in serving().message_stream_converter(chat())]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ({"message": "no", "param": "logit_bias", "code": 400}, 400, "invalid_value"),
        ({"message": "no", "param": "input_tokens", "code": 400}, 400, "context_length_exceeded"),
        ({"message": "EngineCore encountered an issue.", "code": 500}, 500, "engine_error"),
    ],
)
@pytest.mark.parametrize("before", [(), (data(CHUNK), text_chunk("a"))])
async def test_an_error_in_a_stream_keeps_its_status_and_its_field(
    error: dict[str, Any], status: int, code: str, before: tuple[str, ...]
) -> None:
    *_, last = await converted(*before, data({"error": error}), DONE)
    found = error_in(last.encode().removesuffix(b"\n\n"))
    assert found is not None and found.status == status
    assert from_engine(found.status, found.body, "id").code == code
    assert found.is_dead == (status == 500)


async def test_a_stream_without_an_error_is_as_vllm_makes_it() -> None:
    events = await converted(data(CHUNK), text_chunk("a"), data({**CHUNK, "choices": []}), DONE)
    kinds = [event.partition("\n")[0].removeprefix("event: ") for event in events]
    assert kinds == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert not any(error_in(event.encode()) for event in events)


@pytest.mark.parametrize(
    ("param", "named"),
    [("max_completion_tokens", "max_tokens"), ("stop", "stop_sequences"), ("tools", "tools")],
)
def test_an_error_answer_names_the_field_that_the_client_sent(param: str, named: str) -> None:
    from vllm.entrypoints.anthropic import api_router
    from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse

    keep_error_facts(None)
    told = ErrorInfo(message="no", type="BadRequestError", param=param, code=400)
    answer = api_router.translate_error_response(ErrorResponse(error=told))
    error = from_engine(answer.status_code, bytes(answer.body), "id")
    assert (error.status, error.message, error.param) == (400, "no", named)
    assert EngineError(400, bytes(answer.body)).status == 400


async def test_a_thoughts_signature_is_the_same_wherever_the_answer_is_made() -> None:
    from vllm.entrypoints.anthropic import serving as anthropic_serving

    from deployments.engine.vllm.resuming.continuing_ids import keep_ids
    from deployments.wire import resumable

    keep_ids()
    thought = data({**CHUNK, "choices": [{"index": 0, "delta": {"reasoning": "hm"}}]})
    first = ResumableExchange(None, MESSAGES)
    first.set_engine("engine")
    # another engine continues it
    second = ResumableExchange(Known((), 0, 0, 0, first.made_by), MESSAGES)
    streams = []
    for exchange in (first, second, None):
        token = resumable.current.set(exchange)
        try:
            usage = data({**CHUNK, "choices": []})
            streams.append(await converted(data(CHUNK), thought, usage, DONE))
        finally:
            resumable.current.reset(token)
    assert streams[0] == streams[1] != streams[2]
    assert anthropic_serving.uuid.uuid4().hex


async def test_an_engine_that_does_not_say_how_it_reads_messages_reports_nothing() -> None:
    async def effort() -> str:
        return "low"

    known = SimpleNamespace(_merge_inline_system=True, _get_disabled_thinking_effort=effort)
    assert await messages_facts(known) == MessagesFacts(True, "low")
    assert await messages_facts(None) is None
    assert await messages_facts(SimpleNamespace()) is None
