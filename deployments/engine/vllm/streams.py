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
from vllm.entrypoints.serve.engine.protocol import ErrorInfo
from vllm.exceptions import VLLMClientError

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
    events_of = serving.responses_stream_generator

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

    serving.responses_stream_generator = with_mistakes
