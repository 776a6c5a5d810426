"""Requests as vLLM's models take them, made of all spellings that the APIs allow.

A replica completes a request before vLLM reads it, and a gateway before it reads the prompt, so
both see one prompt. The body is not changed, and unreadable values stay as they are.

vLLM 0.32 fills the gaps of one spelling only (vllm/entrypoints/openai/responses/protocol.py), and
reads only the first part of an answer (`utils.py` there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.wire.inference_paths import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES

Item = dict[str, Any]

# Objects whose null fields count as absent, too. Nulls in schemas and in a client's own data stay.
_SETTINGS = (
    *("text", "reasoning", "stream_options", "response_format", "structured_outputs"),
    *("thinking", "output_config", "tool_choice", "repetition_detection"),
)
# The first line of a tool's result that its client marks as an error.
FAILED = "Error:"
# The tiers of vLLM's responses. Gateways decide about a tier, so engines need no other.
_TIERS = ("auto", "default", "flex", "scale", "priority")
# Results of tools that no engine runs. Clients that offer such a tool ask for them.
_NEVER_INCLUDED = ("web_search_call.action.sources", "web_search_call.results")
_WORDS = ("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")


def completed(path: str, fields: Mapping[str, Any]) -> Item:
    """Return the fields of a body with all that vLLM needs."""
    found = _without_nulls(fields)
    for name in _SETTINGS:
        if isinstance(found.get(name), dict):
            found[name] = _without_nulls(found[name])
    if isinstance(text := found.get("text"), dict) and isinstance(text.get("format"), dict):
        found["text"] = {**text, "format": _without_nulls(text["format"])}
    if path == RESPONSES:
        _complete_response(found)
    message = _anthropic_message if path in (MESSAGES, COUNT_TOKENS) else _chat_message
    if isinstance(found.get("messages"), list):
        found["messages"] = [message(each) for each in found["messages"]]
    if isinstance(found.get("system"), list):
        found["system"] = _parts(found["system"])
    if path in (CHAT, RESPONSES) and isinstance(found.get("tools"), list):
        found["tools"] = [_tool(tool) for tool in found["tools"]]
    return found


def _complete_response(found: Item) -> None:
    if isinstance(found.get("input"), list):
        found["input"] = [_item(item) for item in found["input"]]
    if isinstance(included := found.get("include"), list):
        found["include"] = [name for name in included if name not in _NEVER_INCLUDED]
    if isinstance(tier := found.get("service_tier"), str) and tier not in _TIERS:
        del found["service_tier"]


def _without_nulls(value: Mapping[str, Any]) -> Item:
    return {name: each for name, each in value.items() if each is not None}


def _parts(content: Any) -> Any:
    """Return a message's content, with no nulls in its parts."""
    if not isinstance(content, list):
        return content
    return [_without_nulls(part) if isinstance(part, dict) else part for part in content]


# --- tools ---


def _tool(tool: Any) -> Any:
    """Return a tool with parameters: without them vLLM generates any JSON value as its arguments.

    It is a chat's, with its function inside, or a response's, which may be a namespace of others.
    """
    if not isinstance(tool, dict):
        return tool
    tool = _without_nulls(tool)
    if isinstance(tool.get("function"), dict):
        return {**tool, "function": _with_parameters(_without_nulls(tool["function"]))}
    if isinstance(tool.get("tools"), list):  # no engine takes a namespace in a namespace
        return {**tool, "tools": [_function(inner) for inner in tool["tools"]]}
    return _function(tool)


def _function(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return _with_parameters(_without_nulls(tool))


def _with_parameters(function: Item) -> Item:
    schema = function.get("parameters", {})
    if not isinstance(schema, dict) or any(word in schema for word in _WORDS):
        return function
    return {**function, "parameters": {"type": "object", "properties": {}, **schema}}


# --- chats ---


def _chat_message(message: Any) -> Any:
    """Return a chat's message without nulls. A refusal becomes a text of its content."""
    if not isinstance(message, dict):
        return message
    made = _without_nulls(message)
    content = made.get("content") or ""
    if isinstance(content, list):
        made["content"] = content = [_chat_part(part) for part in content]
    if isinstance(made.get("tool_calls"), list):
        made["tool_calls"] = _parts(made["tool_calls"])
    refusal = made.get("refusal")
    if isinstance(refusal, str) and refusal and isinstance(content, str | list):
        before = [{"type": "text", "text": content}] if isinstance(content, str) else content
        made["content"] = [*before, {"type": "text", "text": refusal}] if content else refusal
        del made["refusal"]
    return made


def _chat_part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    made = _without_nulls(part)
    if made.get("type") != "refusal" or "refusal" not in made:
        return made
    rest = {name: value for name, value in made.items() if name != "refusal"}
    return {**rest, "type": "text", "text": made["refusal"]}


# --- Anthropic's messages ---


def _anthropic_message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    made = _without_nulls(message)
    if isinstance(made.get("content"), list):
        made["content"] = [_block(block) for block in made["content"]]
    return made


def _block(block: Any) -> Any:
    """Return a block without nulls. The result of a failed tool says so first."""
    if not isinstance(block, dict):
        return block
    made = _without_nulls(block)
    if made.get("type") != "tool_result":
        return made
    content = _parts(made.get("content", ""))
    if made.pop("is_error", False) is True:
        if isinstance(content, list):
            content = [{"type": "text", "text": FAILED}, *content]
        elif isinstance(content, str):
            content = f"{FAILED}\n{content}" if content else FAILED
    return {**made, "content": content}


# --- responses ---


def _item(item: Any) -> Any:
    """Return an item in the one spelling that vLLM reads whole."""
    if not isinstance(item, dict):
        return item
    made = _without_nulls(item)
    if "type" not in made and "role" in made:
        made["type"] = "message"
    kind = made.get("type")
    if kind == "message":
        return _message(made)
    if kind == "reasoning":
        return _reasoning(made)
    if kind in ("function_call_output", "custom_tool_call_output"):
        return _result(made)
    return made


def _message(made: Item) -> Item:
    content = made.get("content")
    if made.get("role") != "assistant":
        if isinstance(content, list):
            made["content"] = [_asked_part(part) for part in content]
        return made
    text = content if isinstance(content, str) else _joined(content, "")
    if text is None:
        return made
    part = {"type": "output_text", "text": text, "annotations": []}
    return {**made, "content": [part], "status": made.get("status", "completed")}


def _reasoning(made: Item) -> Item:
    """Return a thought with its whole text as content; without content, its summary is that."""
    summary = made.get("summary", [])
    texts = [_joined(made.get("content", []), "\n"), _joined(summary, "\n")]
    if None in texts:
        return {**made, "summary": summary}
    text = next((text for text in texts if text), "")
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {**made, "summary": [], "content": content}


def _result(made: Item) -> Item:
    """Return a tool's result, with one text if all of its parts are texts."""
    output = made.get("output")
    kept = {name: value for name, value in made.items() if name not in ("id", "status")}
    if not isinstance(output, list):
        return kept
    text = _joined(output, "\n")
    return {**kept, "output": [_asked_part(part) for part in output] if text is None else text}


def _asked_part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    made = _without_nulls(part)
    if made.get("type") == "input_image":
        made.setdefault("detail", "auto")
    return made


def _joined(parts: Any, between: str) -> str | None:
    """Return the text of all parts; None if one is not a text."""
    texts = [_text_of(part) for part in parts] if isinstance(parts, list) else [None]
    return None if None in texts else between.join(text for text in texts if text)


def _text_of(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    text = part.get("refusal" if part.get("type") == "refusal" else "text")
    return text if isinstance(text, str) else None
