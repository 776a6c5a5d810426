"""A completed /v1/responses request as the chat that vLLM builds from it.

Source: vllm/entrypoints/openai/responses/{protocol,utils}.py of vLLM 0.32. Messages, function
calls, their results and plain reasoning are supported. Other input raises Unknowable, and so does
history that only the engine has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.prompt.chat import function_of
from deployments.prompt.unknowable import Unknowable, objects_of, text_of

_UNFINISHED = ("in_progress", "incomplete")
_ELSEWHERE = ("previous_response_id", "previous_input_messages", "prompt", "kv_transfer_params")


def messages_of(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the chat's messages."""
    if any(fields.get(name) is not None for name in _ELSEWHERE):
        raise Unknowable("a prompt that is not all in the request")
    messages: list[dict[str, Any]] = []
    if fields.get("instructions") is not None and text_of(fields, "instructions"):
        messages.append({"role": "system", "content": fields["instructions"]})
    if isinstance(fields.get("input"), str):
        return [*messages, {"role": "user", "content": fields["input"]}]
    said: list[dict[str, Any]] = []
    for item in objects_of(fields, "input"):
        _add(item, said)
    return messages + said


def continues_last_message(fields: Mapping[str, Any]) -> bool:
    """Return whether the last item is an incomplete answer that the model continues."""
    items = fields.get("input")
    if isinstance(items, str) or not items:
        return False
    last = items[-1]
    if last.get("status") not in _UNFINISHED:
        return False
    if "type" not in last:
        raise Unknowable("an unfinished item of no type")
    return last["type"] in ("message", "reasoning")


def tools_of(fields: Mapping[str, Any], exclude_when_choice_none: bool) -> list[Any] | None:
    """Return the tools of a Responses request as a template sees them."""
    if not fields.get("tools"):
        return None
    tools = [_tool(tool) for tool in objects_of(fields, "tools")]
    excluded = exclude_when_choice_none and fields.get("tool_choice") == "none"
    return None if excluded else tools


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise Unknowable("a tool that is not a function")
    return {"type": "function", "function": function_of(tool)}


def _add(item: Mapping[str, Any], messages: list[dict[str, Any]]) -> None:
    """Add one item: as a new message, or to the assistant's last one."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        # the content may be a list, whose kinds only vLLM's models distinguish
        content, call_id = text_of(item, "output"), text_of(item, "call_id")
        messages.append({"role": "tool", "content": content, "tool_call_id": call_id})
    elif kind == "function_call":
        _add_call(item, messages)
    elif kind == "reasoning":
        _add_said("reasoning", _reasoning(item), messages)
    elif kind != "message":
        raise Unknowable("an item of another type")
    elif item.get("role") == "assistant":
        _add_said("content", _answer(item), messages)
    else:
        messages.append(_asked(item))


def _asked(item: Mapping[str, Any]) -> dict[str, Any]:
    role, content = text_of(item, "role"), item.get("content")
    if role not in ("user", "system", "developer"):
        raise Unknowable("a role of another kind")
    if isinstance(content, list):
        return {"role": role, "content": [_text_part(part) for part in content]}
    return {"role": role, "content": text_of(item, "content")}


def _text_part(part: Any) -> dict[str, Any]:
    if not isinstance(part, dict) or part.keys() != {"type", "text"}:
        raise Unknowable("content that is not text")
    if part["type"] != "input_text":
        raise Unknowable("content that is not text")
    return {"type": "text", "text": text_of(part, "text")}


def _answer(item: Mapping[str, Any]) -> str:
    """Return an assistant's message; of several parts vLLM keeps the first."""
    if isinstance(item.get("content"), str):
        return text_of(item, "content")
    parts = objects_of(item, "content")
    if not parts or any(part.get("type") != "output_text" for part in parts):
        raise Unknowable("an answer that is not text")
    return text_of(parts[0], "text")


def _reasoning(item: Mapping[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise Unknowable("encrypted reasoning")
    for name in ("content", "summary"):
        if item.get(name):
            return text_of(objects_of(item, name)[0], "text")
    return ""


def _add_said(name: str, text: str, messages: list[dict[str, Any]]) -> None:
    last = _last_answer(messages)
    if last is not None and last.get(name) is None:
        last[name] = text
    else:
        messages.append({"role": "assistant", name: text})


def _add_call(item: Mapping[str, Any], messages: list[dict[str, Any]]) -> None:
    if item.get("namespace") is not None:
        raise Unknowable("a call into a namespace")
    function = {"name": text_of(item, "name"), "arguments": text_of(item, "arguments")}
    call = {"id": text_of(item, "call_id"), "function": function, "type": "function"}
    last = _last_answer(messages)
    if last is None:
        messages.append({"role": "assistant", "tool_calls": [call]})
    else:
        last.setdefault("tool_calls", []).append(call)


def _last_answer(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    return messages[-1] if messages and messages[-1]["role"] == "assistant" else None
