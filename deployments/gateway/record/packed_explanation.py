"""Explanations as bytes in Redis: JSON, which zlib compresses where it is longer than PLAIN_BYTES.

Anyone with write access to Redis can replace them. A value that is no explanation, or is longer
than MAX_BYTES when decompressed, counts as none.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

# That of a few candidates: compressing it would take longer than everything else about it.
PLAIN_BYTES = 4096
# Far more than an explanation with all the candidates that it shows.
MAX_BYTES = 64 * 1024

# What an explanation shows of a candidate to tenants that are no operators.
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
    """Return a JSON list of the explanations, with what loads the candidates where `loads`."""
    found = [found for value in values if (found := unpacked(value)) is not None]
    return msgspec.json.encode(found if loads else [of_its_own(each) for each in found])


def of_its_own(explanation: dict[str, Any]) -> dict[str, Any]:
    """Without addresses, and without what other tenants load the candidates with."""
    candidates = explanation.get("candidates", ())
    own = [{name: candidate.get(name) for name in _OF_ITS_OWN} for candidate in candidates]
    # a shadow's prediction and regret are what others load its choice with
    return {**explanation, "candidates": own, "shadow": None} if candidates else explanation


def _plain(value: bytes) -> bytes:
    """Raises ValueError for more than MAX_BYTES, zlib.error for other bytes."""
    if value.startswith(b"{"):  # the output of zlib begins otherwise
        plain, is_whole = value[: MAX_BYTES + 1], True
    else:
        stream = zlib.decompressobj()
        plain = stream.decompress(value, MAX_BYTES + 1)
        is_whole = stream.eof
    if len(plain) > MAX_BYTES or not is_whole:
        raise ValueError("no explanation is that long, or the rest of it is missing")
    return plain
