"""Queues of requests that wait for their turn: bounded, and fair between tenants.

The tenant with the fewest engine seconds goes next (`autoscaling.admission.fair_share`), with its
oldest request: a thousand requests of one delay the only request of another by one. Interactive
requests go before batch ones. A full queue accepts one more of a tenant with few by evicting the
newest of the tenant with most. Times are arguments, in seconds of any one clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from autoscaling.admission.fair_share import FairShare

T = TypeVar("T")


@dataclass(eq=False)
class Waiter(Generic[T]):
    """A queued request, since `since`; `work_s`: the seconds of a replica's time that it needs,
    `tokens`: its prompt tokens to compute."""

    what: T
    tenant: str
    work_s: float
    since: float
    tokens: int = 0


class WaitingRoom(Generic[T]):
    """The queue of one class: at most `limit` requests. Requests beyond a lowered limit stay."""

    def __init__(self, limit: int, shares: FairShare | None = None) -> None:
        self.limit = limit
        self._shares = shares or FairShare()
        # the order of turns among equals, without tenants that have no waiters
        self._queues: OrderedDict[str, OrderedDict[Waiter[T], None]] = OrderedDict()
        self._work_s: dict[str, float] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiter[T]]:
        return chain.from_iterable(self._queues.values())

    @property
    def full(self) -> bool:
        return self._size >= self.limit

    @property
    def work_s(self) -> float:
        """Return the seconds of one replica's time of all queued requests."""
        return sum(self._work_s.values())

    @property
    def by_tenant(self) -> dict[str, int]:
        return {tenant: len(queue) for tenant, queue in self._queues.items()}

    def oldest_s(self, now: float) -> float:
        """Return how long the oldest has waited; 0 for an empty queue."""
        return max((now - next(iter(queue)).since for queue in self._queues.values()), default=0.0)

    def takes(self, tenant: str) -> bool:
        """Return whether one more of the tenant's requests has room."""
        return not self.full or self._fullest_beside(tenant) is not None

    def ahead_s(self, tenant: str) -> float:
        """Return the seconds of one replica's time before one more of the tenant's requests.

        It is the time of the tenant's queued requests, and the part that is due to each other
        tenant by then. That part extends to the end of the request in which it is reached.
        """
        own_s = self._work_s.get(tenant, 0.0)
        turn = self._shares.after(tenant, own_s)
        others_s = 0.0
        for other, queue in self._queues.items():
            if other != tenant and self._shares.had(other) <= turn:
                due_s = self._shares.until(other, turn) + next(iter(queue)).work_s
                others_s += min(self._work_s[other], due_s)
        return own_s + others_s

    def enter(self, waiter: Waiter[T]) -> Waiter[T] | None:
        """Enqueue. Return the evicted request. Raises OverflowError if there is no room for this
        one."""
        evicted = None
        if self.full:
            fullest = self._fullest_beside(waiter.tenant)
            if fullest is None:
                raise OverflowError(f"{self.limit} are already queued")
            evicted = next(reversed(self._queues[fullest]))
            self.leave(evicted)
        self._queues.setdefault(waiter.tenant, OrderedDict())[waiter] = None
        self._work_s[waiter.tenant] = self._work_s.get(waiter.tenant, 0.0) + waiter.work_s
        self._size += 1
        return evicted

    def next(self) -> Waiter[T] | None:
        """Return the request whose turn it is. It stays until it leaves."""
        if not self._queues:
            return None
        return next(iter(self._queues[min(self._queues, key=self._shares.had)]))

    def leave(self, waiter: Waiter[T]) -> None:
        """Remove a served or cancelled request; its tenant comes last among equals. No effect if it
        is not queued."""
        queue = self._queues.get(waiter.tenant)
        if queue is None or waiter not in queue:
            return
        was_first = next(iter(queue)) is waiter
        del queue[waiter]
        self._size -= 1
        self._work_s[waiter.tenant] -= waiter.work_s
        if not queue:
            del self._queues[waiter.tenant], self._work_s[waiter.tenant]
        elif was_first:
            self._queues.move_to_end(waiter.tenant)

    def _fullest_beside(self, tenant: str) -> str | None:
        """Return the tenant with most queued requests; None if this one would have as many."""
        fullest = max(self._queues, key=lambda t: len(self._queues[t]), default=None)
        if fullest is None:
            return None
        own = len(self._queues.get(tenant, ()))
        return fullest if len(self._queues[fullest]) > own + 1 else None
