"""vLLM's streams report a client's error to the client, like its answers in one piece.

vLLM starts a stream before its engine has read the request. What that rejects (a constraint, a
token id beyond the vocabulary) is raised in a running stream. A responses client then saw a broken
connection. For the others, vLLM logs the error with a traceback, and the message may quote the
request. Sources: `responses_stream_generator`, `chat_completion_stream_generator` and
`completion_stream_generator` in vllm/entrypoints/openai/*/serving.py of vLLM 0.32.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import BaseModel, ValidationError
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest, ResponsesResponse
from vllm.entrypoints.serve.engine.protocol import ErrorInfo
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import SamplingParams

from deployments.engine.vllm.api_server.request_bodies import one_of

LOGGERS = tuple(
    f"vllm.entrypoints.{api}"
    for api in (
        *("openai.chat_completion.serving", "openai.completion.serving"),
        "anthropic.api_router",
    )
)


def log_no_mistakes() -> None:
    """Do not log errors that a stream has reported as the client's own."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_no_mistake)


def _is_no_mistake(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], VLLMClientError))


class _ErrorEvent(BaseModel):
    """A response's last event. `error`: that of an answer in one piece."""

    type: str = "error"
    code: str = "invalid_value"
    message: str
    param: str | None
    sequence_number: int
    error: ErrorInfo


def tell_mistakes(serving: Any) -> None:
    """Install in `serving`: vLLM's OpenAIServingResponses, or None if the model has no such API."""
    if serving is None:
        return
    create = serving.create_responses
    events_of = serving.responses_stream_generator

    async def created(request: ResponsesRequest, *args: Any, **kwargs: Any) -> Any:
        if (mistake := why_no_echo(request)) is not None:
            return serving.create_error_response(mistake)
        return await create(request, *args, **kwargs)

    async def with_mistakes(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        number = -1
        try:
            async for event in events_of(*args, **kwargs):
                number = event.sequence_number
                yield event
        except (VLLMClientError, ValueError) as error:
            if isinstance(error, ValidationError):
                raise  # of an event created by vLLM
            told = serving.create_error_response(error).error
            yield _ErrorEvent(
                message=told.message, param=told.param, sequence_number=number + 1, error=told
            )

    serving.create_responses = created
    serving.responses_stream_generator = with_mistakes


def why_no_echo(request: ResponsesRequest) -> VLLMClientError | None:
    """Return the error for a field that vLLM's response repeats, and cannot have.

    vLLM validates its own response, at the end of an answer in one piece, and calls such an error
    its own in a stream.
    """
    try:
        ResponsesResponse.from_request(
            request,
            SamplingParams(),
            model_name="",
            created_time=0,
            output=[],
            status="in_progress",
        )
    except ValidationError as error:
        return one_of(error)
    return None
