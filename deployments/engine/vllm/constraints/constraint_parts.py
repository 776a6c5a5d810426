"""The parts of a constraint that are followed separately from the whole (`grammar_follow.py`).

A way through the whole may not reach each part: a free text or another property comes first, or
an unlikely token. So each pattern, grammar and embedded schema is also followed from its beginning,
and so is what may be slow inside (`constraint_inner.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deployments.engine.vllm.constraints.constraint_inner import (
    inner_formats,
    inner_grammars,
    inner_patterns,
)
from deployments.wire.plain_constraints import NAMED

# Keywords that contain an instance, not a schema.
DATA = frozenset({"const", "enum", "default", "examples"})
_ROOTS = ("$defs", "definitions")
_ALTERNATIVES = ("anyOf", "oneOf")
_LENGTHS = ("minLength", "maxLength")
# Shorter strings cost little.
_LONG = 64

Part = tuple[str, Any]
"""A field of vLLM's StructuredOutputsParams and its value."""


def parts_of(kind: str, constraint: Any) -> list[Part]:
    """Return the different parts of a constraint; none of a choice, or of an unreadable one. Those
    of a schema have the whole's definitions, which they may refer to."""
    if kind in ("regex", "grammar") and isinstance(constraint, str):
        return list(_inner(kind, constraint))
    if kind not in ("json", "structural_tag"):
        return []
    if isinstance(constraint, str):
        try:
            constraint = json.loads(constraint)
        except (ValueError, RecursionError):
            return []
    definitions = (
        {name: constraint[name] for name in _ROOTS if name in constraint}
        if isinstance(constraint, Mapping)
        else {}
    )
    found: dict[str, Part] = {}
    if isinstance(constraint, Mapping) and kind == "structural_tag":
        tags = (("structural_tag", json.dumps(tag)) for tag in inner_formats(constraint))
        found.update((tag, (of, tag)) for of, tag in tags)
    left = [constraint]
    while left:
        schema = left.pop()
        if isinstance(schema, list):
            left += schema
        elif isinstance(schema, Mapping):
            is_whole = schema is constraint and kind == "json"
            has_patterns = "pattern" in schema or "patternProperties" in schema
            own = _own(schema, definitions) if has_patterns or not is_whole else ()
            for part in own:
                found.setdefault(json.dumps(part, sort_keys=True, default=str), part)
            left += subschemas(schema)
    return list(found.values())


def subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas inside, where names of properties are not keywords."""
    for name, inner in schema.items():
        if name in NAMED and isinstance(inner, Mapping):
            yield from inner.values()
        elif name not in DATA:
            yield inner


def _own(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Part]:
    if isinstance(pattern := schema.get("pattern"), str):
        is_format = schema.get("type") == "regex"  # of a structural tag
        yield from _with_inner("regex" if is_format else "json", pattern)
    if isinstance(patterns := schema.get("patternProperties"), Mapping):
        for name in patterns:
            yield from _with_inner("json", str(name))
    if isinstance(grammar := schema.get("grammar"), str):
        yield from _with_inner("grammar", grammar)
    for name in ("schema", "json_schema"):
        if isinstance(inner := schema.get(name), Mapping) and (
            "type" in schema or "begin" in schema
        ):
            yield "json", dict(inner)
    if any(isinstance(schema.get(name), list) for name in _ALTERNATIVES):
        yield "json", {**schema, **definitions}
    lengths = {name: schema[name] for name in _LENGTHS if isinstance(schema.get(name), int)}
    if "pattern" not in schema and max(lengths.values(), default=0) >= _LONG:
        yield "json", {"type": "string", **lengths}


def _with_inner(kind: str, source: str) -> Iterator[Part]:
    yield (kind, {"type": "string", "pattern": source} if kind == "json" else source)
    yield from _inner(kind, source)


def _inner(kind: str, source: str) -> Iterator[Part]:
    if kind == "grammar":
        yield from (("grammar", inner) for inner in inner_grammars(source))
    for inner in inner_patterns(source) if kind != "grammar" else ():
        if kind == "regex":
            yield "regex", inner
        else:  # backends search for a pattern that is not anchored
            start, end = "^" * source.startswith("^"), "$" * _ends_anchored(source)
            inside = inner.removeprefix("^")[: -1 if _ends_anchored(inner) else None]
            yield "json", {"type": "string", "pattern": f"{start}(?:{inside}){end}"}


def _ends_anchored(pattern: str) -> bool:
    return pattern.endswith("$") and not pattern.endswith("\\$")
