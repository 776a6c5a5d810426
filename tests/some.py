"""For loops whose body holds a test's assertions: an empty one would always pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def some(found: Iterable[T]) -> list[T]:
    """All of `found`, which must not be empty."""
    items = list(found)
    assert items, "nothing was found, so nothing would be checked"
    return items
