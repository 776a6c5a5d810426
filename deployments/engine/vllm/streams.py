"""Streams of vLLM's responses API that tell a client's mistake instead of breaking off.

vLLM begins them before its engine has read the request: what that refuses (a constraint, a token id
beyond the vocabulary) was raised in a stream under way, and its client saw a broken connection.
Source: `responses_stream_generator` in vllm/entrypoints/openai/responses/serving.py of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from openai.types.responses import ResponseErrorEvent
from vllm.exceptions import VLLMClientError


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
