"""Recognizes constraints on an answer that compile within a few hundredths of a second.

An engine compiles these at once. For all others it runs a trial first, and placement adds the
engine's queue of trials. So gateways and engines use the same rule. In doubt, a constraint needs a
trial.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Fields of vLLM's StructuredOutputsParams with a constraint that must be compiled.
KINDS = ("choice", "regex", "grammar", "json", "structural_tag")
# Keywords of a schema that contain schemas by name.
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ANNOTATIONS = frozenset({"description", "title", "$comment", "examples", "default"})
# Schemas of these keywords compile in milliseconds: 100 optional properties in 20 ms.
_PLAIN_KEYWORDS = frozenset(
    {"type", "properties", "required", "items", "enum", "const", "additionalProperties", "anyOf"}
    | {"description", "title", "$schema", "strict", "name"}
)
# Types of Anthropic's `tool_choice`. The type `tool` also has a name.
_CHOICES = ("auto", "any", "none")
_PLAIN_BYTES, _PLAIN_ALTERNATIVES, _PLAIN_PROPERTIES = 4_096, 200, 100
# Each optional property adds to the time of every token that can begin it.
_PLAIN_OPTIONAL = 20
# Each alternative of `anyOf` may add to the time of every token. Two make a type optional.
_PLAIN_SCHEMAS, _OPTIONAL = 32, 2


def is_plain(kind: str, constraint: Any) -> bool:
    """Return whether a constraint surely compiles within a few hundredths of a second. Never
    raises.

    `kind` is one of KINDS. The check is fast for any size, because it stops at the limits.
    """
    if constraint is None:
        return True
    if kind == "choice" and isinstance(constraint, list):
        if len(constraint) > _PLAIN_ALTERNATIVES:
            return False
        return sum(_size(text) for text in constraint if isinstance(text, str)) <= _PLAIN_BYTES
    if isinstance(constraint, str) and len(constraint) <= 2 * _PLAIN_BYTES:
        try:
            constraint = json.loads(constraint)
        except (ValueError, RecursionError):
            return False
    if kind != "json" or not isinstance(constraint, Mapping):
        return False
    if compiled_size(constraint, _PLAIN_BYTES) > _PLAIN_BYTES:
        return False
    properties, optional, alternatives, schemas, left = 0, 0, 0, 0, [constraint]
    while left:
        part = left.pop()
        if not isinstance(part, Mapping):
            if part is not True:  # with `false`, vLLM may choose another backend
                return False
            continue
        if not part.keys() <= _PLAIN_KEYWORDS:
            return False
        if part.get("enum") == []:
            return False
        alternatives += len(part["enum"]) if isinstance(part.get("enum"), list) else 0
        if isinstance(part.get("anyOf"), list):
            schemas += max(0, len(part["anyOf"]) - _OPTIONAL)
        if isinstance(named := part.get("properties"), Mapping):
            properties += len(named)
            listed = part.get("required")
            required = {str(name) for name in listed} if isinstance(listed, list) else set()
            optional += sum(name not in required for name in named)
            left += named.values()
        left += [part["items"]] if "items" in part else []
        # without others than the listed properties, a schema is as plain
        more = part.get("additionalProperties", False)
        left += [more] if more is not False else []
        left += part["anyOf"] if isinstance(part.get("anyOf"), list) else []
    if properties > _PLAIN_PROPERTIES or schemas > _PLAIN_SCHEMAS or optional > _PLAIN_OPTIONAL:
        return False
    return alternatives <= _PLAIN_ALTERNATIVES


def needs_trial(fields: Mapping[str, Any]) -> bool:
    """Return whether the answer has a schema, choice, pattern or grammar that is not plain.

    Strict and forced tools always count, because their schemas are not checked. Never raises.
    """
    if not all(is_plain(kind, constraint) for kind, constraint in _constraints(fields)):
        return True
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    # Anthropic's choice is an object; OpenAI's is a word, or an object with a function's name
    choice = _field(choice, "type") if _field(choice, "type") in _CHOICES else choice
    if not isinstance(tools, list) or not tools or choice == "none":
        return False
    forced = choice in ("required", "any") or isinstance(choice, Mapping)
    return forced or any(_is_strict(tool) for tool in tools)


def _constraints(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield kinds of KINDS with their constraints, and nothing for fields that engines reject."""
    if isinstance(structured := fields.get("structured_outputs"), Mapping):
        yield from ((kind, structured.get(kind)) for kind in KINDS)
    text = fields.get("text")
    output = fields.get("output_config")
    for form in (fields.get("response_format"), _field(text, "format"), _field(output, "format")):
        if _field(form, "type") == "structural_tag":
            yield "structural_tag", form
        elif _field(form, "type") == "json_schema":
            yield "json", _field(_field(form, "json_schema"), "schema") or _field(form, "schema")


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _is_strict(tool: Any) -> bool:
    """Return whether a tool of chat completions or of responses is strict."""
    function = _field(tool, "function")
    return bool(_field(tool, "strict") or _field(function, "strict"))


def compiled_size(document: Any, most: int | None = None) -> int:
    """Return the size of a schema: the bytes of its names and values, without annotations, and one
    per list item. The count stops above `most`."""
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
