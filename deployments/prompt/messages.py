"""A /v1/messages request as the chat that vLLM makes of it.

Source: `to_chat_completion_request` in vllm/entrypoints/anthropic/serving.py of vLLM 0.32. Text,
thinking, calls of tools and their results. Anything more in a message raises Unknowable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deployments.prompt.conversation import BILLING_LINE
from deployments.prompt.facts import MessagesFacts
from deployments.prompt.unknowable import Unknowable, mapping_of, objects_of, text_of

_LEFT_OUT = ("redacted_thinking", "tool_reference")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")

Message = dict[str, Any]


def as_chat(fields: Mapping[str, Any], facts: MessagesFacts) -> dict[str, Any]:
    """The fields of the chat completion that decide its prompt. Nothing of `fields` is changed."""
    choice = mapping_of(fields, "tool_choice").get("type")
    chat: dict[str, Any] = {
        "messages": _messages(fields, facts.merges_system_messages),
        "tools": _tools(fields),
        "tool_choice": "none" if choice == "none" else "auto",
        "reasoning_effort": _effort(fields, facts.disabled_thinking_effort),
        "chat_template_kwargs": fields.get("chat_template_kwargs"),
    }
    return {name: value for name, value in chat.items() if value is not None}


def _messages(fields: Mapping[str, Any], merges_system_messages: bool) -> list[Message]:
    asked = objects_of(fields, "messages")
    system = _system_texts(fields.get("system"))
    if merges_system_messages:
        for message in asked:
            if message.get("role") == "system":
                system.append(_inline_system_text(message))
    messages: list[Message] = []
    if any(system):
        messages.append({"role": "system", "content": "".join(system)})
    for message in asked:
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            raise Unknowable("a role of another kind")
        if role != "system":
            _add(message, role, messages)
        elif not merges_system_messages and (text := _inline_system_text(message)):
            messages.append({"role": "system", "content": text})
    return messages


def _system_texts(system: Any) -> list[str]:
    if system is None or isinstance(system, str):
        return [system or ""]
    return _texts_without_billing(objects_of({"system": system}, "system"))


def _inline_system_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return "" if content.startswith(BILLING_LINE) else content
    return "".join(_texts_without_billing(objects_of(message, "content")))


def _texts_without_billing(blocks: list[dict[str, Any]]) -> list[str]:
    if any(block.get("type") != "text" for block in blocks):
        raise Unknowable("a system prompt that is more than text")
    texts = [text_of(block, "text") for block in blocks]
    return [text for text in texts if not text.startswith(BILLING_LINE)]


def _add(message: Mapping[str, Any], role: str, messages: list[Message]) -> None:
    """A message, behind the results of tools that it holds."""
    if isinstance(message.get("content"), str):
        messages.append({"role": role, "content": message["content"]})
        return
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in objects_of(message, "content"):
        kind = block.get("type")
        if kind == "text":
            if text := text_of(block, "text"):
                parts.append({"type": "text", "text": text})
        elif kind == "thinking":
            thoughts.append(text_of(block, "thinking"))
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            messages.append(_result(block))
        elif kind not in _LEFT_OUT:
            raise Unknowable("content of another form")
    said: Message = {"role": role}
    if thoughts:
        said["reasoning"] = "".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    if parts:
        said["content"] = parts[0]["text"] if len(parts) == 1 else parts
    if role != "user" or parts:
        messages.append(said)


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    # without an id vLLM takes the time of day
    call_id, name = text_of(block, "id"), block.get("name")
    if not call_id or not isinstance(name, str | None):
        raise Unknowable("a tool call of another form")
    arguments = json.dumps(dict(mapping_of(block, "input")))
    function = {"name": name or "", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _result(block: Mapping[str, Any]) -> Message:
    content, call_id = block.get("content"), block.get("tool_use_id")
    if not isinstance(call_id, str | None):
        raise Unknowable("a tool's result of another form")
    if content is not None and not isinstance(content, str):
        items = objects_of(block, "content")
        if any(item.get("type") != "text" for item in items):
            raise Unknowable("a tool's result that is more than text")
        content = "\n".join(text_of(item, "text") for item in items)
    return {"role": "tool", "tool_call_id": call_id or "", "content": content or ""}


def _tools(fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    if fields.get("tools") is None:
        return None
    return [
        {"type": "function", "function": _function(tool)} for tool in objects_of(fields, "tools")
    ]


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise Unknowable("a tool that is no function")
    return {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": schema if "type" in schema else {**schema, "type": "object"},
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }


def _effort(fields: Mapping[str, Any], disabled: str) -> str | None:
    thinking = mapping_of(fields, "thinking").get("type")
    if thinking == "disabled":
        return disabled
    if thinking not in (None, "enabled", "adaptive"):
        raise Unknowable("thinking of another form")
    effort = mapping_of(fields, "output_config").get("effort")
    if effort is not None and effort not in _EFFORTS:
        raise Unknowable("an effort of another kind")
    return effort
