"""How large a constraint may be, whatever its spelling."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployments.engine.vllm import constraint_bounds as bounds
from deployments.engine.vllm.constraint_bounds import excess_of, shape_of
from tests.any_constraint import JSON, PATTERNS, objects
from tests.every_field.constraints import CHOICES, GRAMMARS, REGEXES, SCHEMAS

HUGE: dict[str, tuple[str, Any]] = {
    "many choices": ("choice", [str(i) for i in range(1001)]),
    "long choices": ("choice", ["x" * 1000] * 100),
    "one long choice": ("choice", ["x" * 65_537]),
    "choices of wide characters": ("choice", ["\U0001f600" * 20_000]),
    "long regex": ("regex", "a" * 65_537),
    "regex of many alternatives": ("regex", "|".join("ab" for _ in range(1001))),
    "repetition": ("regex", "a{1000000}"),
    "open repetition": ("regex", "a{1000000,}"),
    "spaced repetition": ("regex", "a{ 0 , 1000000 }"),
    "nested repetition": ("regex", "(a{1000}){1000}"),
    "repetition of a repetition": ("regex", "a{1000}{1000}"),
    "deeper nested repetition": ("regex", "(?:x(b|c{0,50}){0,50}){0,50}"),
    "repetition in a group left open": ("regex", "(((a{1000000}"),
    "long grammar": ("grammar", "root ::= " + '"a" ' * 20_000),
    "grammar of many alternatives": ("grammar", "root ::= " + " | ".join(['"a"'] * 1001)),
    "grammar's nested repetition": ("grammar", 'root ::= ("a"{1,1000}){1,1000}'),
    "Lark's repetition": ("grammar", "start: x ~ 1..1000000\nx: /a/"),
    "enum": ("json", {"enum": list(range(1001))}),
    "enum in text": ("json", json.dumps({"enum": list(range(1001))})),
    "enum of long strings": ("json", {"enum": ["x" * 1000] * 100}),
    "long const": ("json", {"const": "x" * 70_000}),
    "anyOf": ("json", {"anyOf": [{"const": i} for i in range(1001)]}),
    "array": ("json", {"type": "array", "maxItems": 10**9}),
    "array below": ("json", objects(1, type="array", minItems=10**6)),
    "array below a property with a keyword's name": (
        "json",
        {"properties": {"const": {"type": "array", "minItems": 10**6}}},
    ),
    "array in a definition": ("json", {"$defs": {"enum": {"minItems": 10**6}}}),
    "fractional bound": ("json", {"minItems": 1e9}),
    "maxLength": ("json", {"type": "string", "maxLength": 10**12}),
    "maxProperties": ("json", {"type": "object", "minProperties": 10**9}),
    "pattern": ("json", objects(3, type="string", pattern="(a{1000}){1000}")),
    "pattern of a name": ("json", {"patternProperties": {"a{1000000}": {}}}),
    "pattern of names": ("json", {"propertyNames": {"pattern": "a{1000000}"}}),
    "properties": ("json", objects(2001)),
    "long descriptions": ("json", json.dumps({"description": "x" * 2_000_000})),
    "text that is no JSON": ("json", "{" * 70_000),
    "tag with a schema": (
        "structural_tag",
        json.dumps({"structures": [{"begin": "<a>", "schema": {"maxItems": 10**9}}]}),
    ),
    "tag with a regex": (
        "structural_tag",
        json.dumps({"format": {"type": "regex", "pattern": "a{1000000}"}}),
    ),
    "tag with a grammar": (
        "structural_tag",
        json.dumps({"format": {"type": "grammar", "grammar": 'root ::= "a"{1000000}'}}),
    ),
    "tags": ("structural_tag", json.dumps({"format": {"tags": [{}] * 1001}})),
    "integer that cannot be printed": ("json", {"maxItems": 10**5000}),
}
SENSIBLE: dict[str, tuple[str, Any]] = {
    "yes or no": ("choice", ["yes", "no"]),
    "hundreds of choices": ("choice", [f"category {i}" for i in range(800)]),
    "200 properties with long descriptions": (
        "json",
        objects(200, type="string", maxLength=2000, description="What it says. " * 60),
    ),
    "enums of some hundreds": (
        "json",
        {"properties": {f"p{i}": {"enum": [f"v{n}" for n in range(300)]} for i in range(20)}},
    ),
    "property called maxItems": ("json", {"properties": {"maxItems": {"type": "integer"}}}),
    "instance with a keyword": ("json", {"const": {"maxItems": 10**9}}),
    "mail address": ("regex", r"[\w.+-]{1,64}@[\w-]{1,63}(\.[\w-]{1,63}){1,8}"),
    "braces that repeat nothing": ("regex", r"\{1000000\}[{1000000}]a{,b}"),
    "braces in a grammar's string": ("grammar", 'root ::= "a{1000000}" | "|||"'),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_constraint_is_refused_with_its_value_the_bound_and_a_remedy(name: str) -> None:
    excess = excess_of(*HUGE[name])
    assert excess is not None
    assert excess.value > excess.most
    assert f"at most {excess.most} is allowed" in str(excess)
    assert str(excess).endswith((".", "'."))
    assert excess.remedy


@pytest.mark.parametrize("name", SENSIBLE)
def test_sensible_constraints_are_within_the_bounds(name: str) -> None:
    assert excess_of(*SENSIBLE[name]) is None


@pytest.mark.parametrize(
    ("pattern", "repetitions"),
    [
        ("abc", 1),
        ("a{3}b{5}", 5),
        ("(a{3}b{2}){5}", 15),
        ("((a{10}){10}){10}", 1000),
        ("(a{10})(b{10})", 10),
        ("a{2,}", 2),
        ("a{0,7}", 7),
        (r"\(a{5}\){9}", 9),
        ("[a{5}]{7}", 7),
        ("[]a{5}]{7}", 7),
        ("[^]{5}]{7}", 7),
        ("a{0}", 1),
    ],
)
def test_repetitions_of_nested_groups_multiply(pattern: str, repetitions: int) -> None:
    assert shape_of(pattern).repetitions == repetitions


@given(
    st.sampled_from(["choice", "regex", "grammar", "json", "structural_tag", "json_object"]),
    JSON | PATTERNS | st.lists(st.text()) | JSON.map(json.dumps),
)
@example("regex", "[")
@example("regex", "\\")
@example("json", {"maxItems": float("nan")})
@example("json", {"maxItems": True, "enum": {}, "pattern": 5, "properties": [], "type": []})
@example("json", "[" * 100_000)
@example("choice", ["\ud800"])
def test_no_constraint_makes_the_bounds_raise(kind: str, constraint: Any) -> None:
    excess = excess_of(kind, constraint)
    assert excess is None or str(excess)


@given(PATTERNS)
def test_an_accepted_pattern_is_within_the_bounds(pattern: str) -> None:
    if excess_of("regex", pattern) is None:
        shape = shape_of(pattern)
        assert shape.repetitions <= bounds.MOST_REPETITIONS
        assert shape.alternatives <= bounds.MOST_ALTERNATIVES
        assert len(pattern.encode("utf-8", "surrogatepass")) <= bounds.MOST_BYTES


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_no_nesting_hides_a_repetition(a: int, b: int, c: int) -> None:
    pattern = f"(x(?:[a-z]{{{a}}}|y){{1,{b}}}z){{{c},}}"
    refused = excess_of("regex", pattern) is not None
    assert refused == (a * b * c > bounds.MOST_REPETITIONS)


def test_the_constraints_that_every_field_is_tried_with_never_make_the_bounds_raise() -> None:
    everything = (
        *(("json", schema) for schema in SCHEMAS),
        *(("regex", regex) for regex in REGEXES),
        *(("grammar", grammar) for grammar in GRAMMARS),
        *(("choice", choice) for choice in CHOICES),
    )
    assert {excess_of(kind, constraint) is None for kind, constraint in everything} == {True, False}
