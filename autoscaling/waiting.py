"""Where batch requests wait for their turn: bounded, and fair between tenants.

Tenants take turns, each with its oldest request first: a thousand requests of one delay the only
request of another by one. Times are passed in, in seconds of any one clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Waiter(Generic[T]):
    """One that waits, since `since`; `work_s`: seconds of a replica's time that it will take,
    `tokens`: prompt tokens that are to be computed for it."""

    what: T
    tenant: str
    work_s: float
    since: float
    tokens: int = 0


class BatchQueue(Generic[T]):
    """At most `limit` waiters; those beyond a limit that was lowered keep their place."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # whose turn it is first; a tenant without waiters is not in it
        self._queues: OrderedDict[str, OrderedDict[Waiter[T], None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Waiter[T]]:
        return chain.from_iterable(self._queues.values())

    @property
    def full(self) -> bool:
        return len(self) >= self.limit

    @property
    def work_s(self) -> float:
        """Seconds of one replica's time that all who wait will take."""
        return sum(waiter.work_s for waiter in self)

    @property
    def by_tenant(self) -> dict[str, int]:
        return {tenant: len(queue) for tenant, queue in self._queues.items()}

    def oldest_s(self, now: float) -> float:
        """How long the oldest has waited; 0 when nobody does."""
        return max((now - next(iter(queue)).since for queue in self._queues.values()), default=0.0)

    def enter(self, waiter: Waiter[T]) -> None:
        """Raises OverflowError when full."""
        if self.full:
            raise OverflowError(f"{self.limit} are waiting already")
        self._queues.setdefault(waiter.tenant, OrderedDict())[waiter] = None

    def next(self) -> Waiter[T] | None:
        """Whose turn it is. It stays until it leaves."""
        return next(iter(next(iter(self._queues.values()))), None) if self._queues else None

    def leave(self, waiter: Waiter[T]) -> None:
        """Served, or gone; its tenant comes last now. Nothing when it is not here any more."""
        queue = self._queues.get(waiter.tenant)
        if queue is None or waiter not in queue:
            return
        was_first = next(iter(queue)) is waiter
        del queue[waiter]
        if not queue:
            del self._queues[waiter.tenant]
        elif was_first:
            self._queues.move_to_end(waiter.tenant)
