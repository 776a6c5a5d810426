"""Constraints on an answer that surely compile in a few hundredths of a second.

An engine compiles them at once, without a trial. Gateways know which these are: placement counts an
engine's queue of trials for all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Fields of vLLM's StructuredOutputsParams that hold what has to be compiled.
KINDS = ("choice", "regex", "grammar", "json", "structural_tag")
# Of a schema: what holds schemas by name.
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ANNOTATIONS = frozenset({"description", "title", "$comment", "examples", "default"})
# What these make of a schema compiles in milliseconds: 100 optional properties in 20 ms.
_PLAIN_KEYWORDS = frozenset(
    {"type", "properties", "required", "items", "enum", "const", "additionalProperties", "anyOf"}
    | {"description", "title", "$schema", "strict", "name"}
)
# Of Anthropic's `tool_choice`; with `tool` it has a name as well.
_CHOICES = ("auto", "any", "none")
_PLAIN_BYTES, _PLAIN_ALTERNATIVES, _PLAIN_PROPERTIES = 4_096, 200, 100


def is_plain(kind: str, constraint: Any) -> bool:
    """Whether a constraint surely compiles in a few hundredths of a second. Never raises.

    `kind` is one of KINDS. Cheap for any size: what exceeds a bound is not read to its end.
    """
    if constraint is None:
        return True
    if kind == "choice" and isinstance(constraint, list):
        if len(constraint) > _PLAIN_ALTERNATIVES:
            return False
        return sum(_size(of) for of in constraint if isinstance(of, str)) <= _PLAIN_BYTES
    if isinstance(constraint, str) and len(constraint) <= 2 * _PLAIN_BYTES:
        try:
            constraint = json.loads(constraint)
        except (ValueError, RecursionError):
            return False
    if kind != "json" or not isinstance(constraint, Mapping):
        return False
    if compiled_size(constraint, _PLAIN_BYTES) > _PLAIN_BYTES:
        return False
    properties, alternatives, left = 0, 0, [constraint]
    while left:
        part = left.pop()
        if not isinstance(part, Mapping):
            if not isinstance(part, bool):
                return False
            continue
        if not part.keys() <= _PLAIN_KEYWORDS:
            return False
        for name in ("enum", "anyOf"):
            alternatives += len(part[name]) if isinstance(part.get(name), list) else 0
        if isinstance(named := part.get("properties"), Mapping):
            properties += len(named)
            left += named.values()
        left += [part[name] for name in ("items", "additionalProperties") if name in part]
        left += part["anyOf"] if isinstance(part.get("anyOf"), list) else []
    return properties <= _PLAIN_PROPERTIES and alternatives <= _PLAIN_ALTERNATIVES


def needs_trial(fields: Mapping[str, Any]) -> bool:
    """Whether the answer has to keep to a schema, choice, pattern or grammar that is not plain.

    Where it cannot be told, as with tools, it has. Never raises.
    """
    if not all(is_plain(kind, constraint) for kind, constraint in _constraints(fields)):
        return True
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    # Anthropic's choice is an object, OpenAI's a word or a function's name
    choice = _field(choice, "type") if _field(choice, "type") in _CHOICES else choice
    if not isinstance(tools, list) or not tools or choice == "none":
        return False
    forced = choice in ("required", "any") or isinstance(choice, Mapping)
    return forced or any(_is_strict(tool) for tool in tools)


def _constraints(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each with its kind, one of KINDS; nothing for a field that the engine refuses."""
    if isinstance(structured := fields.get("structured_outputs"), Mapping):
        yield from ((kind, structured.get(kind)) for kind in KINDS)
    text = fields.get("text")
    output = fields.get("output_config")
    for form in (fields.get("response_format"), _field(text, "format"), _field(output, "format")):
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


def compiled_size(document: Any, most: int | None = None) -> int:
    """Bytes of the names and values in a schema, without its annotations. An item of a list adds
    one. Above `most` it counts no further."""
    size, left = 0, [(document, False)]
    while left and (most is None or size <= most):
        part, are_names = left.pop()
        if isinstance(part, Mapping):
            for name, inner in part.items():
                if most is not None and size > most:
                    break
                if are_names or name not in _ANNOTATIONS:
                    size += _size(str(name))
                    left.append((inner, name in NAMED and not are_names))
        elif isinstance(part, list):
            size += len(part)
            if most is None or size <= most:
                left += [(inner, False) for inner in part]
        else:
            size += _size(part) if isinstance(part, str) else 4
    return size


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
