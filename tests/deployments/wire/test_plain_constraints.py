"""Which constraints compile at once."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.wire.plain_constraints import KINDS, is_plain
from tests.any_constraint import JSON, PATTERNS, objects


@pytest.mark.parametrize(
    ("kind", "constraint"),
    [
        ("choice", ["yes", "no"]),
        ("json", objects(100, type="string")),
        ("json", json.dumps(objects(20, type="string", description="What it says."))),
        ("json", {"properties": {"pattern": {"enum": ["a", "b"]}, "a": {"anyOf": [{}, True]}}}),
        ("regex", None),
    ],
)
def test_small_constraints_of_simple_parts_are_plain(kind: str, constraint: Any) -> None:
    assert is_plain(kind, constraint)


@pytest.mark.parametrize(
    ("kind", "constraint"),
    [
        ("regex", "a"),
        ("grammar", 'root ::= "a"'),
        ("structural_tag", "{}"),
        ("choice", ["x" * 5000]),
        ("choice", ["x"] * 201),
        ("json", objects(101, type="string")),
        ("json", objects(1, type="string", maxLength=255)),
        ("json", objects(1, type="array", items={"pattern": "a"})),
        ("json", {"anyOf": [{"type": "string", "maxLength": 255}]}),
        ("json", {"additionalProperties": {"minItems": 5}}),
        ("json", {"properties": {"a": 5}}),
        ("json", {"enum": list(range(201))}),
        ("json", {"$ref": "#"}),
        ("json", {"unknown": {"maxLength": 255}}),
        ("json", "{"),
        ("json", []),
    ],
)
def test_any_other_constraint_is_not_plain(kind: str, constraint: Any) -> None:
    assert not is_plain(kind, constraint)


@given(st.sampled_from(["choice", "regex", "json"]), JSON | PATTERNS | JSON.map(json.dumps))
def test_no_constraint_makes_the_look_for_plain_ones_raise(kind: str, constraint: Any) -> None:
    assert is_plain(kind, constraint) in (True, False)


@pytest.mark.parametrize(
    "huge",
    [
        {"enum": list(range(3_000_000))},
        {"properties": {f"p{i}": {} for i in range(1_000_000)}},
        {"required": [[[]] * 1_000_000]},
        ["x"] * 3_000_000,
    ],
    ids=["enum", "properties", "required", "choices"],
)
def test_a_huge_constraint_is_not_read_to_its_end(huge: Any) -> None:
    began = time.process_time()
    assert not any(is_plain(kind, huge) for kind in KINDS)
    assert time.process_time() - began < 0.3
