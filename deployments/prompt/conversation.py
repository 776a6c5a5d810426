"""Messages as vLLM passes them to a chat template.

Source: vllm/renderers/chat_utils.py and hf.py of vLLM 0.32. Text only: other content raises
Unknowable. Inputs stay unchanged, and the order of keys matters, because templates print these as
JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deployments.prompt.unknowable import Unknowable, text_of

Conversation = list[dict[str, Any]]

# Fields of a text part that are passed to templates that take parts. Of the other fields, some are
# dropped and some turn the part into an image.
_PASSED_ON = {"cache_control"}
# A line that Claude Code adds to system prompts; it changes with every request.
BILLING_LINE = "x-anthropic-billing-header"


def conversation_of(
    messages: Sequence[Mapping[str, Any]], content_format: str, knows_developers: bool
) -> Conversation:
    """Return the messages as a template sees them."""
    conversation = [_seen(message, content_format) for message in messages]
    if knows_developers or all(message["role"] != "developer" for message in conversation):
        return conversation
    return _with_one_system_message([_as_system(message) for message in conversation])


def _seen(message: Mapping[str, Any], content_format: str) -> dict[str, Any]:
    role, content = text_of(message, "role"), message.get("content")
    # Few templates accept a tool's result in parts, so vLLM never passes it in parts.
    as_parts = content_format == "openai" and role != "tool"
    # a long chat has hundreds of messages with one text each
    if as_parts or role == "system" or not isinstance(content, str):
        parts = _parts(content)
        if role == "system":
            parts = _without_billing_line(parts)
        if content_format == "string":
            parts = [part for part in parts if part["text"]]
        content = parts if as_parts else _joined(parts)
    seen: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        seen |= _said_beside_content(message)
    elif role == "tool" and "tool_call_id" in message:
        seen["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            seen[name] = message[name]
    if role == "developer":
        if message.get("tools") is not None:
            raise Unknowable("tools of a developer message")
        seen["tools"] = None
    return seen


def _parts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise Unknowable("content of another form")
    return [_text_part(part) for part in content]


def _text_part(part: Any) -> dict[str, Any]:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise Unknowable("content that is not text")
    if part.keys() - {"type", "text"} - _PASSED_ON:
        raise Unknowable("a text part with extra fields")
    return {"type": "text", "text": text_of(part, "text"), **part}


def _joined(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts)


def _without_billing_line(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    for part in parts:
        if not part["text"].startswith(BILLING_LINE):
            kept.append(part)
        elif rest := part["text"].partition("\n")[2]:
            kept.append({**part, "text": rest})
    return kept


def _said_beside_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an assistant's tool calls and reasoning."""
    said: dict[str, Any] = {}
    if message.get("tool_calls"):
        said["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    if message.get("reasoning") is not None:
        reasoning = text_of(message, "reasoning")
        said |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return said


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    if call.get("type") != "function":
        raise Unknowable("a tool call of another form")
    arguments = _arguments(text_of(call["function"], "arguments"))
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "developer":
        return message
    return {k: v for k, v in message.items() if k != "tools"} | {"role": "system"}


def _with_one_system_message(conversation: Conversation) -> Conversation:
    """Merge all system messages into one, first: some templates accept no others."""
    places = [i for i, message in enumerate(conversation) if message["role"] == "system"]
    if places == [0]:
        return conversation
    contents = [conversation[i]["content"] for i in places]
    texts = [content if isinstance(content, str) else _joined(content) for content in contents]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in conversation if message["role"] != "system")]
