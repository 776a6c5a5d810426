"""Values that vLLM's API fails on where it should refuse them: a gateway refuses them first.

`tests/every_field` asks a real engine with every field of the API, and found these in vLLM 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from deployments.gateway.intake.errors import ApiError

# All digits alike, and both letters of an exponent: then only a body with one of these can hold a
# number of more than 64 bits. A regular expression takes as long as all else that is read.
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_IN_LARGE_NUMBERS = (b"0" * 19, b"e000", b"e+000")
_PIECE_BYTES, _LONGEST = 65536, 19


def refuse_unreadable(fields: Mapping[str, Any], body: bytes) -> None:
    """Raises ApiError 400; `fields` are those of `body`."""
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
    """Piece by piece: between two, another thread can have the interpreter."""
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
            _refuse(name, "holds a number that takes more than 64 bits. Send a smaller one.")


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
            f"has an assistant's message, item {number}, whose 'content' does not begin with a"
            " text. Send a text first, or leave the message out.",
        )


def _refuse(name: str, why: str) -> NoReturn:
    raise ApiError(400, f"{name!r} {why}", code="invalid_value", param=name)
