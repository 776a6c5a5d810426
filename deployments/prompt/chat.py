"""A /v1/chat/completions request as vLLM's models store it.

Source: vllm/entrypoints/openai/chat_completion/protocol.py of vLLM 0.32, and the types of the
OpenAI SDK that it is built from. Fields that these may change raise Unknowable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.prompt.unknowable import Unknowable, flag_of, mapping_of, objects_of, text_of


def messages_of(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the request's messages. `fields` stays unchanged."""
    if fields.get("chat_template") is not None:
        raise Unknowable("a chat template in the request")
    # A prefill engine sends the prompt's tokens too; the router in front of it already knows them.
    if mapping_of(fields, "kv_transfer_params").get("prompt_token_ids") is not None:
        raise Unknowable("token ids from another engine")
    return [_kept(message) for message in objects_of(fields, "messages")]


def tools_of(fields: Mapping[str, Any], exclude_when_choice_none: bool) -> list[Any] | None:
    """Return the request's tools as a template sees them."""
    if fields.get("tools") is None:
        return None
    tools = [_tool(tool, tool.get("function")) for tool in objects_of(fields, "tools")]
    excluded = exclude_when_choice_none and fields.get("tool_choice") == "none"
    return None if excluded else tools


def function_of(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function's definition as a template sees it."""
    description, parameters = holder.get("description"), holder.get("parameters")
    if not isinstance(description, str | None) or not isinstance(parameters, dict | None):
        raise Unknowable("a tool of another form")
    if holder.get("defer_loading") is not None:
        raise Unknowable("a tool that is loaded later")
    function: dict[str, Any] = {
        "name": text_of(holder, "name"),
        "description": description,
        "parameters": parameters,
    }
    if holder.get("strict") is not None:
        function["strict"] = flag_of(holder, "strict", False)
    return function


def documents_of(fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the request's documents: title, text and the like."""
    if fields.get("documents") is None:
        return None
    documents = objects_of(fields, "documents")
    if not all(isinstance(value, str) for document in documents for value in document.values()):
        raise Unknowable("a document that is more than text")
    return documents


def _kept(message: dict[str, Any]) -> dict[str, Any]:
    kept = dict(message)
    if kept.get("tool_calls"):
        kept["tool_calls"] = [_tool_call(call) for call in objects_of(kept, "tool_calls")]
    if kept.get("reasoning") is None:
        kept["reasoning"] = kept.get("reasoning_content")
    return kept


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call in the key order of the SDK's types, which a template that prints it
    shows."""
    function = call.get("function")
    if not isinstance(function, dict):
        raise Unknowable("a tool call of another form")
    first = {"arguments": text_of(function, "arguments"), "name": text_of(function, "name")}
    ordered = {"id": text_of(call, "id"), "function": first | function, "type": None}
    return ordered | {name: value for name, value in call.items() if name != "function"}


def _tool(tool: Mapping[str, Any], function: Any) -> dict[str, Any]:
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise Unknowable("a tool that is not a function")
    if tool.get("defer_loading") is not None:
        raise Unknowable("a tool that is loaded later")
    return {"type": "function", "function": function_of(function)}
