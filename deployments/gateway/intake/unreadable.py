"""Rejects values on which vLLM's API fails with a 5xx instead of rejecting them.

`tests/every_field` found these in vLLM 0.32: it sends every field of the API to a real engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from deployments.gateway.intake.errors import ApiError

# The translation makes all digits 0 and both exponent letters e. Then only a body with one of these
# sequences can have a number of more than 64 bits. A regular expression would double the time to
# read a body.
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_IN_LARGE_NUMBERS = (b"0" * 19, b"e000", b"e+000")
_PIECE_BYTES, _LONGEST = 65536, 19


def refuse_unreadable(fields: Mapping[str, Any], body: bytes) -> None:
    """Raises ApiError 400 for such a value; `fields` are the parsed `body`."""
    if _may_hold_large_numbers(body):
        for name, value in fields.items():
            _refuse_large_numbers(name, value)
    constraint = fields.get("structured_outputs")
    if constraint is not None and not isinstance(constraint, dict):
        _refuse("structured_outputs", "must be an object, such as {'choice': ['yes', 'no']}.")
    items = fields.get("input")
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("role") == "assistant":
            _refuse_no_text(number, item.get("content"))


def _may_hold_large_numbers(body: bytes) -> bool:
    """Return whether a number may exceed 64 bits.

    It checks the body in pieces, so other threads can take the GIL in between.
    """
    for start in range(0, len(body), _PIECE_BYTES):
        alike = body[start : start + _PIECE_BYTES + _LONGEST].translate(_ALIKE)
        if any(digits in alike for digits in _IN_LARGE_NUMBERS):
            return True
    return False


def _refuse_large_numbers(name: str, value: Any) -> None:
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part
        elif _is_large(part):
            _refuse(name, "has a number of more than 64 bits. Send a smaller one.")


def _is_large(value: Any) -> bool:
    if isinstance(value, int):
        return not -(2**63) <= value < 2**63
    return isinstance(value, float) and math.isinf(value)


def _refuse_no_text(number: int, content: Any) -> None:
    if not isinstance(content, list):
        return
    first = content[0] if content else None
    if not (isinstance(first, dict) and isinstance(first.get("text"), str)):
        _refuse(
            "input",
            f"has an assistant message, item {number}, whose 'content' does not begin with a text."
            " Send a text first, or omit the message.",
        )


def _refuse(name: str, why: str) -> NoReturn:
    raise ApiError(400, f"{name!r} {why}", code="invalid_value", param=name)
