"""What vLLM's Anthropic API lacks for its gateways: the facts of an error, and ids that stay.

Sources, of vLLM 0.32: vllm/entrypoints/anthropic/{api_router,serving}.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from fastapi.responses import JSONResponse
from vllm.entrypoints.anthropic import api_router, serving
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError

from deployments.prompt import MessagesFacts

logger = logging.getLogger(__name__)

_ERROR = 'data: {"error"'
# vLLM's words for it are flags of its server.
_NO_THINKING = (
    "This model does not support a thinking budget. Omit 'thinking', or set its 'type' to "
    "'adaptive' or 'disabled'."
)
# Fields of the chat that vLLM makes of messages, and the client's.
_PARAMS = {"max_completion_tokens": "max_tokens", "stop": "stop_sequences"}
_IN_MESSAGES = re.compile(r"\bmax_completion_tokens\b|^stop\b|`stop`")


def keep_error_facts(messages: Any) -> None:
    """Have errors name the field and the status, as those of vLLM's other APIs do.

    `messages`: vLLM's AnthropicServingMessages, or None where the model has no such API.
    """
    api_router.translate_error_response = _translated
    if messages is None:
        return
    convert, create = messages.message_stream_converter, messages.create_messages

    async def with_thinking(request: Any, raw_request: Any = None) -> Any:
        budget = request.thinking is not None and request.thinking.type == "enabled"
        if budget and not _thinks_with_a_budget(messages.engine_client):
            raise VLLMValidationError(_NO_THINKING, parameter="thinking")
        return await create(request, raw_request)

    messages.create_messages = with_thinking

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


def _thinks_with_a_budget(engine: Any) -> bool:
    """The condition of `InputProcessor` in vllm/v1/engine/input_processor.py."""
    config = engine.vllm_config.reasoning_config
    return config is not None and bool(config.enabled)


def keep_signatures(next_id: Any) -> None:
    """Have the signature of a thought drawn by `next_id`, so that it stays where another engine
    resumes the answer."""
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
        logger.warning(
            "failed to read how messages become chats; routing them by load: %s",
            type(error).__name__,
        )
        return None


def _translated(response: ErrorResponse) -> JSONResponse:
    error = response.error.model_dump()
    return JSONResponse(_body(error), status_code=response.error.code)


def _body(error: dict[str, Any]) -> dict[str, Any]:
    """Return Anthropic's error, with the names of its fields."""
    param = str(error.get("param"))
    message = _IN_MESSAGES.sub(_of_messages, str(error.get("message")))
    told = {**error, "message": message, "param": _PARAMS.get(param, error.get("param"))}
    return {"type": "error", "error": told}


def _of_messages(found: re.Match[str]) -> str:
    name = found[0].strip("`")
    return found[0].replace(name, _PARAMS[name])
