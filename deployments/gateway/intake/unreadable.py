"""Rejects what vLLM's API cannot read, or cannot reject cheaply.

`tests/every_field` sends every field of the API to a real engine, and found values on which vLLM
0.32 fails with a 5xx. One bad item of a list costs vLLM hundreds of errors. So the gateway looks at
the items of all lists, and stops at the first that no engine reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from deployments.gateway.api.request_codes import FIELD_NOT_ALLOWED, INVALID_VALUE
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.items.kinds import first_fault

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


def refuse_bad_items(path: str, fields: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for the first item that engines do not read, or would read in part."""
    fault = first_fault(path, fields)
    if fault is None:
        return
    if fault.is_ignored:
        raise ApiError(FIELD_NOT_ALLOWED, fault.message, param=fault.field)
    raise ApiError(INVALID_VALUE, fault.message, param=fault.field)


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
            _refuse(name, "contains a number with more than 64 bits. Send a smaller number.")


def _is_large(value: Any) -> bool:
    if isinstance(value, int):
        return not -(2**63) <= value < 2**63
    return isinstance(value, float) and math.isinf(value)


def _refuse(name: str, why: str) -> NoReturn:
    raise ApiError(INVALID_VALUE, f"{name!r} {why}", param=name)
