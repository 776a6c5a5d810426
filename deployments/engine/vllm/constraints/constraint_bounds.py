"""Size limits of a constraint on an answer: a choice, regular expression, grammar or schema.

vLLM compiles constraints of any size. These limits are checked first, and cost milliseconds at
most. They never raise for an unreadable constraint: vLLM reports its fault. A constraint within
them can still take long to compile, so it is tried first as well (`grammar_trial.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.engine.vllm.constraints.constraint_inner import (
    MOST_INNER,
    inner_formats,
    inner_patterns,
)
from deployments.engine.vllm.constraints.constraint_parts import subschemas
from deployments.engine.vllm.constraints.constraint_shapes import Shape, shape_of, simplified
from deployments.wire.plain_constraints import compiled_size

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
# Each token of `(a{0,100}){0,100}` takes xgrammar 10 ms, and that of a third level seconds.
MOST_NESTED_REPETITIONS = 5_000
# Descriptions compile to nothing, but are parsed.
MOST_DOCUMENT_BYTES = 1_048_576

_KEYWORD_BOUNDS = {
    **dict.fromkeys(("minItems", "maxItems", "minContains", "maxContains"), MOST_ITEMS),
    **dict.fromkeys(("minProperties", "maxProperties"), MOST_ITEMS),
    **dict.fromkeys(("minLength", "maxLength"), MOST_LENGTH),
}
_LISTS = ("enum", "anyOf", "oneOf", "allOf", "prefixItems", "tags", "elements", "triggers", "type")
_MOST_DIGITS = 18
_MOST_QUOTED = 60
_MORE = "The engine would take too long for each token of an answer."
_SEVERAL_WAYS = (
    "The same text can match in several ways, so each token of an answer would take the engine"
    " longer than the one before."
)
# Python does not print integers of more than 4,300 digits.
_UNPRINTABLE = 10**_MOST_DIGITS


@dataclass(frozen=True)
class Excess:
    """`what` is `value`, which exceeds `most`. `sentences` say it instead if the value is of no use
    to a client."""

    what: str
    value: int | float
    most: int
    remedy: str
    sentences: str = ""

    def __str__(self) -> str:
        if self.sentences:
            return f"{self.sentences} {self.remedy}"
        value = f"{self.value:,}" if self.value < _UNPRINTABLE else "10^18 or more"
        return f"{self.what} is {value}, but at most {self.most:,} is allowed. {self.remedy}"


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
    if isinstance(document, Mapping) and "format" in document:
        what = "The number of formats of the structural tag that combine others"
        inner = len(inner_formats(document))
        yield from _above(what, inner, MOST_INNER, "Send fewer formats.")
    properties, left = 0, [(document, 1)]
    while left:
        part, items = left.pop()
        if isinstance(part, list):
            left += [(one, items) for one in part]
        elif isinstance(part, Mapping):
            properties += _length(part.get("properties")) + _length(part.get("patternProperties"))
            yield from _keyword_excesses(part)
            items *= _most_items(part)
            what, remedy = (
                "The number of items of nested arrays in the schema",
                "Allow fewer items.",
            )
            yield from _above(what, items, MOST_REPETITIONS, remedy)
            left += [(one, items) for one in subschemas(part)]
    what = "The number of properties in the schema"
    yield from _above(what, properties, MOST_PROPERTIES, "Send a schema with fewer properties.")


def _most_items(schema: Mapping[str, Any]) -> int:
    """Return what a schema's number of items adds to the product over nested arrays."""
    counts = (schema.get(name) for name in ("minItems", "maxItems"))
    return max((int(count) for count in counts if isinstance(count, int)), default=1) or 1


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


def _pattern_excesses(noun: str, pattern: str, is_grammar: bool = False) -> Iterator[Excess]:
    what = f"of the {noun}"
    size, remedy = _size(pattern), "Send a shorter one."
    yield from _above(f"The length {what} in bytes", size, MOST_BYTES, remedy)
    if size > MOST_BYTES:
        return
    shape = shape_of(pattern if is_grammar else simplified(pattern), is_grammar)
    remedy = "Send fewer alternatives."
    count = shape.alternatives
    yield from _above(f"The number of alternatives {what}", count, MOST_ALTERNATIVES, remedy)
    repeated = f"The number of repetitions of {_quoted(shape.most_repeated)} in the {noun}"
    remedy = f"{_MORE} Repeat less, or use `*` or `+`."
    yield from _above(repeated, shape.repetitions, MOST_REPETITIONS, remedy)
    nested = (
        f"The number of repetitions of {_quoted(shape.most_nested)} in the {noun}, multiplied over"
        " nested ones,"
    )
    remedy = f"{_MORE} Repeat less, or do not nest repetitions."
    yield from _above(nested, shape.nested, MOST_NESTED_REPETITIONS, remedy)
    yield from _ambiguities(noun, shape)
    inner = 0 if is_grammar else len(inner_patterns(pattern))
    groups = f"The number of groups and alternatives {what} that repeat others"
    yield from _above(groups, inner, MOST_INNER, "Send fewer groups.")


def _ambiguities(noun: str, shape: Shape) -> Iterator[Excess]:
    if shape.star:
        found = f"repeats a repetition: {_quoted(shape.star)}. Neither has an upper bound."
        yield _ambiguous(f"The {noun} {found}", "Write `a*` instead of `(a*)*`.")
    if shape.both_ends:
        found = (
            f"rule {_quoted(shape.recursive)} refers to itself twice: {_quoted(shape.both_ends)}."
        )
        remedy = "Write `s ::= item s | item` instead of `s ::= s s | item`."
        yield _ambiguous(f"In the {noun}, {found}", remedy)
    if shape.side_by_side:
        found = f"repeats the same twice in a row: {_quoted(shape.side_by_side)}."
        yield _ambiguous(f"The {noun} {found}", "Write `a*` instead of `a* a*`.")


def _ambiguous(found: str, remedy: str) -> Excess:
    sentences = f"{found} {_SEVERAL_WAYS}"
    return Excess("The number of ways to match the same text", 2, 1, remedy, sentences)


def _quoted(piece: str) -> str:
    piece = " ".join(piece.split())
    return f"`{piece if len(piece) <= _MOST_QUOTED else piece[: _MOST_QUOTED - 3] + '...'}`"


def _above(what: str, value: int | float, most: int, remedy: str) -> Iterator[Excess]:
    if value > most:
        yield Excess(what, value, most, remedy)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Mapping) else 0


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
