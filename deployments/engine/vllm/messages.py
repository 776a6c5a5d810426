"""What vLLM's Anthropic API lacks for its gateways: the facts of an error, and ids that stay.

Sources, of vLLM 0.32: vllm/entrypoints/anthropic/{api_router,serving}.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from fastapi.responses import JSONResponse
from vllm.entrypoints.anthropic import api_router, serving
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from deployments.prompt import MessagesFacts

logger = logging.getLogger(__name__)

_ERROR = 'data: {"error"'
# vLLM sets both fields of a chat; its client sent one.
_PARAMS = {"max_completion_tokens": "max_tokens", "stop": "stop_sequences"}


def keep_error_facts(messages: Any) -> None:
    """Have errors name the field and the status, as those of vLLM's other APIs do.

    `messages`: vLLM's AnthropicServingMessages, or None where the model has no such API.
    """
    api_router.translate_error_response = _translated
    if messages is None:
        return
    convert = messages.message_stream_converter

    async def with_mistakes(chunks: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """A chat's error is no event that vLLM's converter knows."""
        errors: list[str] = []

        async def answered() -> AsyncGenerator[str, None]:
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    if chunk.startswith(_ERROR):
                        errors.append(chunk)
                        return
                    yield chunk

        async with contextlib.aclosing(convert(answered())) as events:
            async for event in events:
                yield event
        for error in errors:
            told = json.loads(error.removeprefix("data: "))["error"]
            yield f"event: error\ndata: {json.dumps(_body(told))}\n\n"

    messages.message_stream_converter = with_mistakes


def keep_signatures(next_id: Any) -> None:
    """Have the signature of a thought drawn by `next_id`, so that it stays where another engine
    continues the answer."""
    serving.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=next_id()))


async def messages_facts(messages: Any) -> MessagesFacts | None:
    """How `messages`, as of `keep_error_facts`, turns a request into a chat. Raises nothing."""
    if messages is None:
        return None
    try:
        return MessagesFacts(
            bool(messages._merge_inline_system), await messages._get_disabled_thinking_effort()
        )
    except Exception as error:
        logger.warning("messages are routed by load only: %s", type(error).__name__)
        return None


def _translated(response: ErrorResponse) -> JSONResponse:
    error = response.error.model_dump()
    return JSONResponse(_body(error), status_code=response.error.code)


def _body(error: dict[str, Any]) -> dict[str, Any]:
    param = str(error.get("param"))
    return {"type": "error", "error": {**error, "param": _PARAMS.get(param, error.get("param"))}}
