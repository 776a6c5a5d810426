"""Which constraints compile at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
        ("json", {"properties": {f"p{i}": {} for i in range(20)}}),
        ("json", json.dumps(objects(20, type="string", description="What it says."))),
        ("json", {"properties": {"pattern": {"enum": ["a", "b"]}, "a": {"anyOf": [{}, True]}}}),
        ("json", objects(50, anyOf=[{"type": "string"}, {"type": "null"}])),
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
        ("json", {"properties": {f"p{i}": {} for i in range(21)}}),
        ("json", {"properties": {f"p{i}": {} for i in range(40)}, "required": ["x"] * 40}),
        ("json", {"items": {"anyOf": [{"properties": {f"p{i}": {} for i in range(11)}}] * 2}}),
        ("json", objects(1, type="string", maxLength=255)),
        ("json", objects(1, type="array", items={"pattern": "a"})),
        ("json", {"anyOf": [{"type": "string", "maxLength": 255}]}),
        ("json", {"additionalProperties": {"minItems": 5}}),
        ("json", {"properties": {"a": 5}}),
        ("json", {"enum": list(range(201))}),
        ("json", {"items": {"anyOf": [{"type": "array", "items": {"type": "string"}}] * 60}}),
        ("json", {"anyOf": [{"anyOf": [{"anyOf": [{}] * 15}] * 15}] * 15}),
        ("json", {"$ref": "#"}),
        ("json", {"unknown": {"maxLength": 255}}),
        ("json", "{"),
        ("json", []),
    ],
)
def test_any_other_constraint_is_not_plain(kind: str, constraint: Any) -> None:
    assert not is_plain(kind, constraint)


@given(st.sampled_from(["choice", "regex", "json"]), JSON | PATTERNS | JSON.map(json.dumps))
def test_checking_whether_a_constraint_is_plain_never_raises(kind: str, constraint: Any) -> None:
    assert is_plain(kind, constraint) in (True, False)


class Read:
    """How many items of its lists and objects were read."""

    items = 0

    def within(self, given: Any) -> Any:
        """Return the same, and count what is read of it."""
        if isinstance(given, dict):
            return _CountedDict({name: self.within(each) for name, each in given.items()}, self)
        if isinstance(given, list):
            return _CountedList([self.within(each) for each in given], self)
        return given


class _CountedList(list[Any]):
    def __init__(self, items: list[Any], read: Read) -> None:
        super().__init__(items)
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self._read.items += 1
            yield item


class _CountedDict(dict[str, Any]):
    def __init__(self, items: dict[str, Any], read: Read) -> None:
        super().__init__(items)
        self._read = read

    def items(self) -> Any:
        return _CountedList(list(super().items()), self._read)

    def values(self) -> Any:
        return _CountedList(list(super().values()), self._read)


@pytest.mark.parametrize("size", [1_000, 10_000])
@pytest.mark.parametrize(
    "huge_of",
    [
        lambda size: {"enum": list(range(size * 10))},
        lambda size: {"properties": {f"p{i}": {} for i in range(size * 10)}},
        lambda size: {"required": [[[]] * size * 10]},
        lambda size: {"anyOf": [{"anyOf": [{}] * 100}] * (size // 10)},
        lambda size: ["x"] * size * 10,
    ],
    ids=["enum", "properties", "required", "nested", "choices"],
)
def test_a_huge_constraint_is_not_read_to_its_end(huge_of: Callable[[int], Any], size: int) -> None:
    read = Read()
    huge = read.within(huge_of(size))
    assert not any(is_plain(kind, huge) for kind in KINDS)
    assert read.items <= 4_200  # at most one for each of the bytes that a plain one may have


def test_a_constraint_within_the_limits_is_read_to_its_end() -> None:
    read = Read()
    assert is_plain("json", read.within({"properties": {f"p{i}": {} for i in range(20)}}))
    assert read.items >= 20
