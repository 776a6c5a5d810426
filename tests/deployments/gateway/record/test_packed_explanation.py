"""What Redis holds in place of an explanation costs a gateway little, and hides no other."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.record.packed_explanation import MAX_BYTES, joined, packed, unpacked

CANDIDATE = {"replica_id": "replica-1", "cached_tokens": 128, "url": "http://10.0.0.1:8000"}
SHORT: dict[str, Any] = {"request_id": "id-1", "candidates": [CANDIDATE]}
LONG: dict[str, Any] = {"request_id": "id-2", "candidates": [CANDIDATE] * 100}


@pytest.mark.parametrize("explanation", [SHORT, LONG], ids=["plain", "compressed"])
def test_an_explanation_is_unchanged_after_a_round_trip(explanation: dict[str, Any]) -> None:
    assert unpacked(packed(explanation)) == explanation


def test_a_value_that_grows_too_much_when_decompressed_is_skipped_early() -> None:
    bomb = zlib.compress(b'{"request_id": "' + b"a" * 200_000_000 + b'"}', 9)
    tracemalloc.start()
    try:
        assert unpacked(bomb) is None
        assert tracemalloc.get_traced_memory()[1] < 16 * MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value",
    [
        b'{"request_id": "' + b"a" * MAX_BYTES + b'"}',
        zlib.compress(b'{"request_id": "' + b"a" * MAX_BYTES + b'"}'),
        packed(LONG)[:-8],
        b"",
        b"no explanation",
        b"{",
        b'{"a": ' + b"[" * 10_000,
        b"\x78\x9c",
        zlib.compress(b"[]"),
        b'{"candidates": [5]}',
        b'{"candidates": "r1"}',
    ],
)
def test_an_invalid_explanation_is_skipped_without_hiding_others(value: bytes) -> None:
    assert unpacked(value) is None
    for loads in (False, True):
        found = json.loads(joined([packed(SHORT), value, packed(LONG)], loads))
        assert [each["request_id"] for each in found] == ["id-1", "id-2"]


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_decoded_or_skipped(value: bytes) -> None:
    found = unpacked(value)
    assert found is None or isinstance(found, dict)
    assert json.loads(joined([value], loads=False)) in ([], [found])
