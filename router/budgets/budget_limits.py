"""Limits of a request's tenant, grants, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["requests", "tokens", "concurrent", "unknown"]


@dataclass(frozen=True)
class TenantBudget:
    """A scope's limits: a window's requests and tokens, and concurrent requests. None: no limit."""

    scope: str
    requests: int | None = None
    tokens: int | None = None
    concurrent: int | None = None


@dataclass(frozen=True)
class Left:
    """What is left of a budget."""

    requests: int | None
    tokens: int | None


@dataclass(frozen=True)
class NotGranted:
    """A rejection: `kind` of the `budget` is exceeded; "unknown": the grants of others are unknown
    now.

    `retry_after_s`: when enough will have left the window, unless it is granted to another.
    """

    kind: Kind
    budget: TenantBudget
    retry_after_s: float
    left: Sequence[Left]


@dataclass(eq=False)
class Granted:
    """A grant, reserved until it is settled. `by_share`: without Redis."""

    budgets: Sequence[TenantBudget]
    requests: int
    tokens: int
    lease: str
    left: Sequence[Left]
    by_share: bool
    bucket: int
    local_bucket: int
    epoch: int


def left_of(budgets: Sequence[TenantBudget], numbers: Sequence[int]) -> list[Left]:
    return [
        Left(
            None if of.requests is None else numbers[2 * place],
            None if of.tokens is None else numbers[2 * place + 1],
        )
        for place, of in enumerate(budgets)
        if len(numbers) > 2 * place + 1
    ]
