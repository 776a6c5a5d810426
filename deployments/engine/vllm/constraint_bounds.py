"""Size limits of a constraint on an answer: a choice, regular expression, grammar or schema.

vLLM compiles constraints of any size. These limits are checked first, and cost milliseconds at
most. They never raise for an unreadable constraint: vLLM reports its fault. A constraint within
them can still take long to compile, so it is tried first as well (`grammar_trial.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.wire.plain_constraints import NAMED, compiled_size

# Bytes of UTF-8, without the descriptions in a schema.
MOST_BYTES = 65_536
# A structural tag holds the schemas of all tools.
MOST_TAG_BYTES = 262_144
MOST_ALTERNATIVES = 1_000
MOST_PROPERTIES = 2_000
# llguidance expands the items of an array. With 10^9 of them the replica's process ran out of
# memory and died; with 10^6 it was busy for 13 s.
MOST_ITEMS = 10_000
MOST_LENGTH = 1_000_000
# Limit for one pattern, in which the repetitions of nested groups multiply.
MOST_REPETITIONS = 100_000
# Descriptions compile to nothing, but are parsed.
MOST_DOCUMENT_BYTES = 1_048_576

_KEYWORD_BOUNDS = {
    **dict.fromkeys(("minItems", "maxItems", "minContains", "maxContains"), MOST_ITEMS),
    **dict.fromkeys(("minProperties", "maxProperties"), MOST_ITEMS),
    **dict.fromkeys(("minLength", "maxLength"), MOST_LENGTH),
}
_LISTS = ("enum", "anyOf", "oneOf", "allOf", "prefixItems", "tags", "elements", "triggers", "type")
# Keywords that contain an instance, not a schema.
_DATA = frozenset({"const", "enum", "default", "examples"})
_REPEAT = re.compile(r"\s*(\d*)\s*(,?)\s*(\d*)\s*\}|\s*(\d+)\s*\.\.\s*(\d+)")
_MOST_DIGITS = 18
# Python does not print integers of more than 4,300 digits.
_UNPRINTABLE = 10**_MOST_DIGITS


@dataclass(frozen=True)
class Excess:
    """`what` is `value`, which exceeds `most`."""

    what: str
    value: int | float
    most: int
    remedy: str

    def __str__(self) -> str:
        value = self.value if self.value < _UNPRINTABLE else "10^18 or more"
        return f"{self.what} is {value}, and at most {self.most} is allowed. {self.remedy}"


def excess_of(kind: str, constraint: Any) -> Excess | None:
    """Return the first limit that a constraint exceeds; None: it is within all of them.

    `kind` is the name of a field of vLLM's StructuredOutputsParams.
    """
    return next(_excesses(kind, constraint), None)


def _excesses(kind: str, constraint: Any) -> Iterator[Excess]:
    if kind == "choice" and isinstance(constraint, Sequence) and not isinstance(constraint, str):
        choices = [choice for choice in constraint if isinstance(choice, str)]
        what = "The number of choices"
        yield from _above(what, len(constraint), MOST_ALTERNATIVES, "Send fewer choices.")
        size = sum(_size(choice) for choice in choices)
        what = "The total length of the choices in bytes"
        yield from _above(what, size, MOST_BYTES, "Send fewer or shorter choices.")
    elif kind in ("regex", "grammar") and isinstance(constraint, str):
        what = {"regex": "regular expression", "grammar": "grammar"}[kind]
        yield from _pattern_excesses(what, constraint, is_grammar=kind == "grammar")
    elif kind in ("json", "structural_tag"):
        most = MOST_BYTES if kind == "json" else MOST_TAG_BYTES
        yield from _document_excesses(constraint, most)


def _document_excesses(document: Any, most_bytes: int) -> Iterator[Excess]:
    remedy = "Simplify the schema."
    if isinstance(document, str):
        size = _size(document)
        yield from _above("The schema's size in bytes", size, MOST_DOCUMENT_BYTES, remedy)
        try:
            document = json.loads(document)
        except (ValueError, RecursionError):
            yield from _above("The schema's size in bytes", size, most_bytes, remedy)
            return
    what = "The schema's size in bytes, without descriptions,"
    yield from _above(what, compiled_size(document), most_bytes, remedy)
    properties, left = 0, [document]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, Mapping):
            properties += _length(part.get("properties")) + _length(part.get("patternProperties"))
            yield from _keyword_excesses(part)
            left += _subschemas(part)
    what = "The number of properties in the schema"
    yield from _above(what, properties, MOST_PROPERTIES, "Send a schema with fewer properties.")


def _keyword_excesses(schema: Mapping[str, Any]) -> Iterator[Excess]:
    for name, most in _KEYWORD_BOUNDS.items():
        count = schema.get(name)
        if isinstance(count, int | float):
            remedy = f"Send a smaller {name!r}, or omit it."
            yield from _above(f"{name!r} in the schema", count, most, remedy)
    for name in _LISTS:
        if isinstance(listed := schema.get(name), list):
            what = f"The number of items of {name!r} in the schema"
            yield from _above(
                what, len(listed), MOST_ALTERNATIVES, f"Send fewer items of {name!r}."
            )
    if isinstance(pattern := schema.get("pattern"), str):
        yield from _pattern_excesses("'pattern' in the schema", pattern)
    if isinstance(patterns := schema.get("patternProperties"), Mapping):
        for name in patterns:
            yield from _pattern_excesses("name in 'patternProperties'", str(name))
    if isinstance(grammar := schema.get("grammar"), str):
        yield from _pattern_excesses("'grammar' in the schema", grammar, is_grammar=True)


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas inside, where names of properties are not keywords."""
    for name, inner in schema.items():
        if name in NAMED and isinstance(inner, Mapping):
            yield from inner.values()
        elif name not in _DATA:
            yield inner


def _pattern_excesses(what: str, pattern: str, is_grammar: bool = False) -> Iterator[Excess]:
    what = f"of the {what}"
    size, remedy = _size(pattern), "Send a shorter one."
    yield from _above(f"The length {what} in bytes", size, MOST_BYTES, remedy)
    if size > MOST_BYTES:
        return
    shape = shape_of(pattern, is_grammar)
    remedy = "Send fewer alternatives."
    count = shape.alternatives
    yield from _above(f"The number of alternatives {what}", count, MOST_ALTERNATIVES, remedy)
    count, remedy = shape.repetitions, "Repeat less, or use `*` or `+`."
    yield from _above(f"The number of repetitions {what}", count, MOST_REPETITIONS, remedy)


@dataclass(frozen=True)
class Shape:
    """The form of a regular expression or grammar.

    `repetitions`: the most of one element, multiplied over nested groups; at least 1.
    """

    alternatives: int
    repetitions: int


def shape_of(pattern: str, is_grammar: bool = False) -> Shape:
    """Parse what all dialects agree on: groups, classes, escapes, `|` and `{n,m}`.

    In a grammar `"..."` and `'...'` are strings, and `~ n..m` repeats as well.
    """
    bars, innermost = 0, 1
    opened: list[int] = []  # for each open group: the highest number of repetitions within it
    last = 1  # of the previous element
    at, end = 0, len(pattern)
    while at < end:
        char = pattern[at]
        at += 1
        if char == "\\":
            at, last = at + 1, 1
        elif char == "[":
            at, last = _end_of_class(pattern, at), 1
        elif is_grammar and char in "\"'":
            at, last = _end_of_string(pattern, at, char), 1
        elif char == "(":
            opened.append(innermost)
            innermost = last = 1
        elif char == ")" and opened:
            last, innermost = innermost, max(opened.pop(), innermost)
        elif char in "{~" and (found := _REPEAT.match(pattern, at)):
            at, last = found.end(), last * _most_of(found)
            innermost = max(innermost, last)
        elif char == "|":
            bars, last = bars + 1, 1
        elif not char.isspace():
            last = 1
    return Shape(bars + 1, max(innermost, *opened, 1))


def _most_of(repeat: re.Match[str]) -> int:
    """Return the repetitions of `{n}`, `{n,}`, `{n,m}` or `n..m`."""
    numbers = [text[:_MOST_DIGITS] for text in repeat.groups() if text and text != ","]
    return max((int(number) for number in numbers), default=1) or 1


def _end_of_class(pattern: str, at: int) -> int:
    """Return the index after a character class that started just before `at`; `[]]` and `[^]]`
    contain `]`."""
    start = at + 1 if pattern[at : at + 1] == "^" else at
    at = start
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "]" and at > start:
            return at + 1
        at += 1
    return start  # it is not a set


def _end_of_string(pattern: str, at: int, quote: str) -> int:
    start = at
    while at < len(pattern) and pattern[at] != "\n":
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == quote:
            return at + 1
        at += 1
    return start


def _above(what: str, value: int | float, most: int, remedy: str) -> Iterator[Excess]:
    if value > most:
        yield Excess(what, value, most, remedy)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Mapping) else 0


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
