"""Calls of Redis that are repeated where this machine was too busy for it to answer in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
# Nothing is to be cut off: no request waits for it, and virtual time stands still.
PATIENT_S = 60.0
TIMES = 30


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """What it returns in the end; each of `router.slots`' calls can be repeated. Raises
    TimeoutError when Redis does not answer at all."""
    for _ in range(TIMES):
        try:
            return await call()
        except TimeoutError:
            continue
    return await call()
