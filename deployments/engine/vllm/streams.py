"""Streams of vLLM's that tell a client's mistake, and tell it to the client alone.

vLLM begins them before its engine has read the request: what that refuses (a constraint, a token id
beyond the vocabulary) was raised in a stream under way. Of the responses API, its client saw a
broken connection; of the others, vLLM logs the mistake with a traceback, and what it says may quote
the request.
Sources: `responses_stream_generator`, `chat_completion_stream_generator` and
`completion_stream_generator` in vllm/entrypoints/openai/*/serving.py of vLLM 0.32.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

from openai.types.responses import ResponseErrorEvent
from vllm.exceptions import VLLMClientError

LOGGERS = tuple(
    f"vllm.entrypoints.openai.{api}.serving" for api in ("chat_completion", "completion")
)


def log_no_mistakes() -> None:
    """What a stream has told its client as the client's own mistake is not logged."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_no_mistake)


def _is_no_mistake(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], VLLMClientError))


def tell_mistakes(serving: Any) -> None:
    """`serving`: vLLM's OpenAIServingResponses, or None where the model has no such API."""
    if serving is None:
        return
    events_of = serving.responses_stream_generator

    async def with_mistakes(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        number = -1
        try:
            async for event in events_of(*args, **kwargs):
                number = event.sequence_number
                yield event
        except VLLMClientError as error:
            yield ResponseErrorEvent(
                type="error",
                code="invalid_value",
                message=str(error),
                param=getattr(error, "parameter", None),
                sequence_number=number + 1,
            )

    serving.responses_stream_generator = with_mistakes
