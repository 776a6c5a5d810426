"""A chat's stream as vLLM makes an Anthropic stream of it, for the fake engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any


def message(chat: dict[str, Any]) -> dict[str, Any]:
    """The answer in one piece."""
    (choice,) = chat["choices"]
    return {
        **_begun(chat),
        "content": [{"type": "text", "text": choice["message"]["content"]}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 1, "output_tokens": chat["usage"]["completion_tokens"]},
    }


async def message_events(chat: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events of a chat that has one choice."""
    made = 0
    async with aclosing(chat) as events:  # type: ignore[type-var]
        async for event in events:
            told = event.decode().removeprefix("data: ").strip()
            if told == "[DONE]":
                break
            chunk = json.loads(told)
            if "error" in chunk:
                yield _event("error", error=chunk["error"])
                return
            if not made:
                yield _event("message_start", message=_begun(chunk))
                yield _event("content_block_start", index=0, content_block=_text(""))
            made += 1
            if text := chunk["choices"][0]["delta"].get("content"):
                delta = {"type": "text_delta", "text": text}
                yield _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    delta = {"stop_reason": "max_tokens", "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": made})
    yield _event("message_stop")


def _begun(chat: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": chat["id"],
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": chat["model"],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 0},
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _event(kind: str, **more: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()
