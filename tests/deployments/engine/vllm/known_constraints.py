"""Ordinary schemas that stay admitted, and hostile constraints that compile at once.

The first three hostile ones took another tenant's gap between tokens from 16 ms to seconds.
"""

from __future__ import annotations

import json
from typing import Any

TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def listed(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def pattern(text: str) -> dict[str, Any]:
    return record(value={"type": "string", "pattern": text})


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = TEXT
    for level in range(levels):
        schema = record(**{f"level_{level}": schema})
    return schema


ORDINARY: dict[str, dict[str, Any]] = {
    "a person": record(name=TEXT, age=WHOLE, email={"type": "string", "format": "email"}),
    "nested objects": record(
        user=record(name=TEXT, address=record(street=TEXT, city=TEXT, zip=pattern("^[0-9]{5}$")))
    ),
    "twelve levels": _deep(12),
    "an enum": record(
        label={"enum": ["positive", "negative", "neutral"]},
        score={"type": "number", "minimum": 0, "maximum": 1},
    ),
    "an enum of 250 names": record(country={"enum": [f"country {i}" for i in range(250)]}),
    "a union": record(
        item={"anyOf": [record(kind={"const": "a"}, x=WHOLE), record(y=TEXT), {"type": "null"}]}
    ),
    "a tree": {
        "$ref": "#/$defs/node",
        "$defs": {"node": record(value=TEXT, children=listed({"$ref": "#/$defs/node"}))},
    },
    "a linked list": {
        "$ref": "#/$defs/node",
        "$defs": {"node": record(v=WHOLE, next={"anyOf": [{"$ref": "#/$defs/node"}, {}]})},
    },
    "a user interface": record(
        type={"type": "string", "enum": ["div", "button", "header"]},
        label=TEXT,
        children=listed({"$ref": "#"}),
        attributes=listed(record(name=TEXT, value=TEXT)),
    ),
    "steps of a proof": record(steps=listed(record(explanation=TEXT, output=TEXT)), answer=TEXT),
    "formats": record(
        start={"type": "string", "format": "date-time"},
        day={"type": "string", "format": "date"},
        id={"type": "string", "format": "uuid"},
        address={"type": "string", "format": "ipv4"},
    ),
    "lengths": record(
        title={"type": "string", "maxLength": 80},
        summary={"type": "string", "minLength": 20, "maxLength": 500},
    ),
    "a long text": record(body={"type": "string", "maxLength": 5000}),
    "arrays of some items": record(
        tags=listed(TEXT, minItems=1, maxItems=10), scores=listed(NUMBER, maxItems=5)
    ),
    "a matrix": record(rows=listed(listed(NUMBER, minItems=3, maxItems=3), maxItems=3)),
    "patterns": record(
        phone={"type": "string", "pattern": r"^\+?[0-9 ()-]{7,20}$"},
        code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        slug={"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
        color={"type": "string", "pattern": "^#([A-Fa-f0-9]{6}|[A-Fa-f0-9]{3})$"},
        time={"type": "string", "pattern": r"^([01]\d|2[0-3]):[0-5]\d$"},
    ),
    "thirty optional properties": {
        "type": "object",
        "properties": {f"property_{i}": {"type": ["string", "null"]} for i in range(30)},
    },
    "of Pydantic": {
        "$defs": {
            "Color": {"enum": ["red", "green"], "title": "Color", "type": "string"},
            "Item": {
                "properties": {
                    "name": {"title": "Name", "type": "string"},
                    "color": {"$ref": "#/$defs/Color"},
                    "price": {"default": 0.0, "title": "Price", "type": "number"},
                    "note": {"anyOf": [TEXT, {"type": "null"}], "default": None, "title": "Note"},
                },
                "required": ["name", "color"],
                "title": "Item",
                "type": "object",
            },
        },
        "properties": {
            "items": {"items": {"$ref": "#/$defs/Item"}, "title": "Items", "type": "array"},
            "total": {"title": "Total", "type": "number"},
        },
        "required": ["items", "total"],
        "title": "Order",
        "type": "object",
    },
    "of zod": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **record(
            id={"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
            kind={"type": "string", "const": "x"},
            extra={"type": "object", "additionalProperties": TEXT},
        ),
    },
    "a map": {"type": "object", "additionalProperties": WHOLE},
    "any object": {"type": "object"},
    "a list of records": listed(record(a=TEXT, b=WHOLE)),
    "ranges": record(
        rating={"type": "integer", "minimum": 1, "maximum": 5},
        year={"type": "integer", "minimum": 1900, "maximum": 2100},
    ),
    "sixty fields": record(**{f"field_{i}": [TEXT, WHOLE, NUMBER][i % 3] for i in range(60)}),
    "a tuple": {"type": "array", "prefixItems": [TEXT, WHOLE], "items": False, "minItems": 2},
}

NESTED = "((a{0,40}){0,40}){0,40}"
# Refused before a trial, whatever compiles them.
EARLY: dict[str, tuple[str, Any]] = {
    "three levels": ("regex", NESTED),
    "a sum of sums": ("grammar", 'root ::= s\ns ::= "a" | s s\n'),
    "two levels": ("regex", "(a{0,100}){0,100}"),
    "two levels of groups": ("regex", "(?:x?(?:a{1,90}){1,80})"),
    "a named group": ("regex", "(?P<name>(?:a{0,60}b?){0,60}){0,2}"),
    "two levels of a class": ("regex", r"([\w ]{0,99}\s?){0,99}"),
    "a level without an upper bound": ("regex", "(a{80,}){80,}"),
    "in a pattern": ("json", pattern(NESTED)),
    "in a pattern below": ("json", listed({"anyOf": [pattern(NESTED), WHOLE]})),
    "in a pattern of names": ("json", {"patternProperties": {NESTED: TEXT}}),
    "in names": ("json", {"propertyNames": {"pattern": NESTED}}),
    "in a definition": (
        "json",
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "pattern": NESTED}}},
    ),
    "in a schema that is a text": ("json", json.dumps({"type": "string", "pattern": NESTED})),
    "in a tag's regex": (
        "structural_tag",
        json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": NESTED}}),
    ),
    "in a tag's schema": (
        "structural_tag",
        json.dumps(
            {
                "structures": [{"begin": "<a>", "schema": {"pattern": NESTED}, "end": ""}],
                "triggers": ["<a"],
            }
        ),
    ),
    "in a tag's grammar": (
        "structural_tag",
        '{"format": {"type": "grammar", "grammar": "root ::= \\"a\\" | root root"}}',
    ),
    "arrays of arrays": (
        "json",
        listed(listed(listed(WHOLE, maxItems=90), maxItems=90), maxItems=90),
    ),
    "arrays of required arrays": (
        "json",
        listed(record(a=listed(record(b=listed(WHOLE, minItems=99)), minItems=99)), maxItems=99),
    ),
    "a grammar's repetitions": ("grammar", 'root ::= (("a"){0,99}){0,99}\n'),
    "repetitions through a rule": ("grammar", 'root ::= a{0,99}\na ::= "x"{0,99}\n'),
    "repetitions through two rules": ("grammar", 'root ::= b{0,40}\nb ::= a{40}\na ::= "x"{40}\n'),
    "Lark's repetitions": ("grammar", "start: a ~ 1..99\na: b ~ 1..99\nb: /x/\n"),
    "Lark's sum of sums": ("grammar", 'start: s\ns: "a" | s s\n'),
    "a sum of three": ("grammar", 'root ::= s\ns ::= "a" | s s s\n'),
    "an empty sum": ("grammar", 'root ::= s\ns ::= "" | "a" | s s\n'),
    "through another rule": ("grammar", 'root ::= s\ns ::= "a" | t t\nt ::= s | "b"\n'),
    "an operator without priority": ("grammar", 'root ::= e\ne ::= e "+" e | [0-9]\n'),
    "operators through another rule": (
        "grammar",
        'root ::= e\ne ::= b | [0-9]\nb ::= e "+" e | e "*" e\n',
    ),
    "an optional part between": ("grammar", 'root ::= s\ns ::= "a" | s " "? s\n'),
    "after a letter": ("grammar", 'root ::= "a" root root | "a"\n'),
    "in a group": ("grammar", 'root ::= ("a" | root root)\n'),
    "stars of stars": ("grammar", 'root ::= ((("a")*)*)*\n'),
    "stars of stars through a rule": ("grammar", 'root ::= a*\na ::= "x"*\n'),
    "stars side by side": ("grammar", 'root ::= s* s* s*\ns ::= "a"\n'),
    "a regex of stars of alternatives": ("regex", "((a*|b)*)*"),
    "a regex of a plus of a star": ("regex", "(?:x|(a*))+"),
}
# Whether a trial refuses it depends on the backend.
FOLLOWED: dict[str, tuple[str, Any]] = {
    "three small levels": ("regex", "((a{0,9}){0,9}){0,9}"),
    "many optional letters": ("regex", "(a?a?a?a?a?a?a?a?a?a?){0,100}"),
    "a dot and a length": ("regex", "(.*a.{20}){5}"),
    "any text of a length": ("regex", ".{0,90000}"),
    "words": ("regex", r"(\w{0,40} ?){0,40}"),
    "words and a space": ("regex", r"(\w+\s?)+"),
    "alternatives that overlap": ("regex", "(a|aa|aaa|aaaa)*b"),
    "a plus of a plus": ("regex", "(a+)+"),
    "a regex of stars of stars": ("regex", "((a*)*)*"),
    "a regex of a star of a star": ("regex", "(a*)*b"),
    "an alternative twice": ("grammar", 'root ::= (a | b)*\na ::= "x"+\nb ::= "x"+\n'),
    "a palindrome": ("grammar", 'root ::= [a-z] root [a-z] | ""\n'),
    "a right recursion": ("grammar", 'root ::= "a" root | "a"\n'),
    "a Lark palindrome": ("grammar", "start: /[a-z]/ start /[a-z]/ | /[a-z]/\n"),
    "many types": ("json", listed({"anyOf": [{**TEXT, "minLength": i} for i in range(1, 9)]})),
    "behind another text": ("json", record(a=TEXT, b=pattern("((a{0,9}){0,9}){0,9}"))),
    "behind a tag's trigger": (
        "structural_tag",
        '{"structures": [{"begin": "<a>", "schema": {"type": "string", "pattern": '
        '"((a{0,9}){0,9}){0,9}"}, "end": "</a>"}], "triggers": ["<a"]}',
    ),
    "many objects": (
        "json",
        {"anyOf": [{"type": "object", "properties": {f"p{i}": TEXT for i in range(60)}}] * 20},
    ),
    "lists of lists": ("json", {"anyOf": [listed(listed(TEXT)), listed(TEXT), listed({})]}),
}


def _const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def _repeat40(content: Any) -> dict[str, Any]:
    return {"type": "repeat", "min": 0, "max": 40, "content": content}


def _tag(content: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": content})


def _unlikely(rule: str) -> str:
    return f'root ::= [b-z]+ | "7" s\ns ::= {rule}\nx ::= "x"\n'


WORDS = r"(\w{0,40} ?){0,40}"
_WORDS_OR_MORE = f"[b-z]+|7{WORDS}"
# What is slow is behind an unlikely first token; the last part of each is what it hides.
HIDDEN: dict[str, tuple[str, Any, str]] = {
    "hidden words": ("regex", _WORDS_OR_MORE, WORDS),
    "hidden levels": ("regex", "[b-z]+|7((a{0,12}){0,12}){0,12}", "((a{0,12}){0,12}){0,12}"),
    "hidden pluses": ("regex", "[b-z]+|7((a+b?)+c?){0,2000}", "((a+b?)+c?){0,2000}"),
    "a hidden dot": ("regex", "[b-z]+|7(.*a.{20}){5}", "(.*a.{20}){5}"),
    "hidden optional letters": (
        "regex",
        "[b-z]+|7(a?a?a?a?a?a?a?a?a?a?){0,2000}",
        "(a?a?a?a?a?a?a?a?a?a?){0,2000}",
    ),
    "behind a star": ("regex", f"[b-z]*7{WORDS}", WORDS),
    "behind a star, without a group": ("regex", "[b-z]*7a?a?a?", "7a?a?a?"),
    "in an optional group": ("regex", f"(7{WORDS})?x", f"7{WORDS}"),
    "a hidden rule": ("grammar", _unlikely('"a" | s{2}'), "root ::= s"),
    "a hidden rule that may end": ("grammar", _unlikely('"a" s? s?'), "root ::= s"),
    "a hidden rule through x": ("grammar", _unlikely('"a" s x s | "a"'), "root ::= s"),
    "a hidden rule twice": ("grammar", _unlikely('"a" s "a" s | ""'), "root ::= s"),
    "a hidden palindrome": ("grammar", _unlikely('[a-z] s [a-z] | ""'), "root ::= s"),
    "a hidden Lark rule": (
        "grammar",
        'start: /[b-z]+/ | "7" s\ns: "a" s "b" s | "a"\n',
        "start: s",
    ),
    "in a Lark terminal": ("grammar", f"start: /{_WORDS_OR_MORE}/\n", f"start: /{WORDS}/"),
    "hidden formats": (
        "structural_tag",
        _tag(
            {
                "type": "or",
                "elements": [
                    {"type": "regex", "pattern": "[b-z]+"},
                    {
                        "type": "sequence",
                        "elements": [_const("7"), _repeat40(_repeat40(_repeat40(_const("a"))))],
                    },
                ],
            }
        ),
        _tag(_repeat40(_repeat40(_repeat40(_const("a"))))),
    ),
    "hidden in a pattern": ("json", pattern(_WORDS_OR_MORE), f"(?:{WORDS})"),
    "hidden in a pattern of names": (
        "json",
        {"type": "object", "patternProperties": {_WORDS_OR_MORE: TEXT}},
        f"(?:{WORDS})",
    ),
    "hidden in a pattern below": (
        "json",
        record(a={"anyOf": [{"type": "string", "pattern": f"^[b-z]+$|^7{WORDS}$"}, WHOLE]}),
        f"^(?:{WORDS})$",
    ),
    "hidden in a tag's regex": (
        "structural_tag",
        _tag({"type": "regex", "pattern": _WORDS_OR_MORE}),
        WORDS,
    ),
    "hidden in a tag's grammar": (
        "structural_tag",
        _tag({"type": "grammar", "grammar": _unlikely('"a" | s{2}')}),
        "root ::= s",
    ),
}
