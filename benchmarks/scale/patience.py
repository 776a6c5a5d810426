"""Calls of Redis that are repeated when a busy machine makes them time out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
# Nothing is cut off: virtual time stands still meanwhile.
PATIENT_S = 60.0
TIMES = 30


async def patiently(call: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Return the first result in time; each call of `router.index.slots` can be repeated. Raises
    TimeoutError when Redis does not answer at all."""
    for _ in range(TIMES):
        try:
            return await call(*arguments)
        except TimeoutError:
            continue
    return await call(*arguments)
