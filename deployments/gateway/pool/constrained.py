"""Whether an engine may have to try a request's constraint: placement then counts its queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deployments.wire.plain_constraints import KINDS, is_plain


def needs_trial(fields: Mapping[str, Any]) -> bool:
    """Whether the answer has to keep to a schema, choice, pattern or grammar that is not plain.

    Where it cannot be told, as with tools, it has. Never raises.
    """
    if not all(is_plain(kind, constraint) for kind, constraint in _constraints(fields)):
        return True
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if not isinstance(tools, list) or not tools or choice == "none":
        return False
    named = isinstance(choice, Mapping)
    return choice == "required" or named or any(_is_strict(tool) for tool in tools)


def _constraints(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each with its kind, one of KINDS; nothing for a field that the engine refuses."""
    if isinstance(structured := fields.get("structured_outputs"), Mapping):
        yield from ((kind, structured.get(kind)) for kind in KINDS)
    text = fields.get("text")
    for form in (fields.get("response_format"), _field(text, "format")):
        if _field(form, "type") == "structural_tag":
            yield "structural_tag", form
        elif _field(form, "type") == "json_schema":
            yield "json", _field(_field(form, "json_schema"), "schema") or _field(form, "schema")


def _field(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else None


def _is_strict(tool: Any) -> bool:
    """A tool of chat completions, or of responses."""
    function = _field(tool, "function")
    return bool(_field(tool, "strict") or _field(function, "strict"))
