"""An error code, as docs/api.md describes it; `error_codes` has all of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

# `Retry-After`: the answer has that header. `stop`: it has `x-should-retry: false`.
Retry = Literal["no", "yes", "Retry-After", "stop", "Retry-After, stop"]


class ErrorCode(NamedTuple):
    """`status`: the HTTP status; `also`: others that it may have. `occurs` and `remedy`: whole
    sentences. `retry`: whether the same request may succeed later."""

    code: str
    status: int
    occurs: str
    remedy: str
    retry: Retry = "no"
    also: str = ""
