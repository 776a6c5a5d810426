"""An error code of the HTTP API: what the code that raises it and docs/api.md share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

# `Retry-After`: the answer has that header. `stop`: it has `x-should-retry: false`.
Retry = Literal["no", "yes", "Retry-After", "stop", "Retry-After, stop"]


class ErrorCode(NamedTuple):
    """`status`: the HTTP status; `also`: others that it may have. `occurs` and `remedy`: whole
    sentences. `retry`: whether the same request may succeed later."""

    name: str
    status: int
    occurs: str
    remedy: str
    retry: Retry = "no"
    also: str = ""


def codes_in(module: Mapping[str, object]) -> tuple[ErrorCode, ...]:
    """Return the codes among a module's `vars`, in its order."""
    return tuple(each for each in module.values() if isinstance(each, ErrorCode))
