"""Explanations as bytes in Redis: JSON, compressed by zlib if it is longer than PLAIN_BYTES.

Anyone with write access to Redis can replace them. Values that are not explanations, or exceed
MAX_BYTES when decompressed, are ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

# An explanation with few candidates is shorter. Compression would take most of the time to store
# it.
PLAIN_BYTES = 4096
# Far more than an explanation with all the candidates that it shows.
MAX_BYTES = 64 * 1024

# Fields of a candidate that an explanation shows to tenants that are not operators.
_OF_ITS_OWN = ("replica_id", "cached_tokens", "confirmed_tokens", "synced")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def packed(explanation: Mapping[str, Any]) -> bytes:
    value = msgspec.json.encode(explanation)
    return value if len(value) <= PLAIN_BYTES else zlib.compress(value, 1)


def unpacked(value: bytes) -> dict[str, Any] | None:
    """Return the explanation; None for anything that `packed` did not write."""
    try:
        found = _decode(_plain(value))
    except (zlib.error, ValueError, RecursionError):
        return None
    candidates = found.get("candidates", ())
    are_objects = isinstance(candidates, list) and all(isinstance(c, dict) for c in candidates)
    return found if are_objects or not candidates else None


def joined(values: Sequence[bytes], loads: bool) -> bytes:
    """Return a JSON list of the explanations. `loads`: include the candidates' loads."""
    found = [found for value in values if (found := unpacked(value)) is not None]
    return msgspec.json.encode(found if loads else [of_its_own(each) for each in found])


def of_its_own(explanation: dict[str, Any]) -> dict[str, Any]:
    """Return the explanation without addresses and loads, which reveal other tenants' traffic."""
    candidates = explanation.get("candidates", ())
    own = [{name: candidate.get(name) for name in _OF_ITS_OWN} for candidate in candidates]
    # the prediction and regret of another choice reveal the load of its replica
    others = {"shadow": None, "alternative": None, "prefilled": None}
    return {**explanation, "candidates": own, **others} if candidates else explanation


def _plain(value: bytes) -> bytes:
    """Return the JSON. Raises ValueError beyond MAX_BYTES, zlib.error for invalid bytes."""
    if value.startswith(b"{"):  # zlib's output begins with another byte
        plain, is_whole = value[: MAX_BYTES + 1], True
    else:
        stream = zlib.decompressobj()
        plain = stream.decompress(value, MAX_BYTES + 1)
        is_whole = stream.eof
    if len(plain) > MAX_BYTES or not is_whole:
        raise ValueError("the explanation is too long, or incomplete")
    return plain
