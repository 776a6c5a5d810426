"""Whether an engine compiles a grammar for a request: placement then counts its compile queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_constrained(fields: Mapping[str, Any]) -> bool:
    """Whether the answer has to keep to a schema, choice, pattern or grammar. Never raises."""
    if fields.get("structured_outputs") is not None:
        return True
    text = fields.get("text")
    inner = text.get("format") if isinstance(text, Mapping) else None
    if _formats(fields.get("response_format")) or _formats(inner):
        return True
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if not isinstance(tools, list) or not tools or choice == "none":
        return False
    named = isinstance(choice, Mapping)
    return choice == "required" or named or any(_is_strict(tool) for tool in tools)


def _formats(asked: Any) -> bool:
    return isinstance(asked, Mapping) and asked.get("type") != "text"


def _is_strict(tool: Any) -> bool:
    """A tool of chat completions, or of responses."""
    if not isinstance(tool, Mapping):
        return False
    function = tool.get("function")
    return bool(tool.get("strict") or (isinstance(function, Mapping) and function.get("strict")))
