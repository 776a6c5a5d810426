"""Releases and debts of ended requests, from one gateway's book to Redis.

A release leaves the bucket of its reservation. A debt is the use beyond a request's reservation: it
counts from the time when it is known, regardless of limits. A release that counts twice would
overspend, so Redis never gets it again; a debt may count twice and is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.budgets.budget_book import Book
from router.budgets.budget_limits import Granted


@dataclass(frozen=True)
class Settlement:
    """Requests and tokens that leave Redis' `bucket`; None: a debt, with negative tokens."""

    epoch: int
    scopes: Sequence[str]
    local_bucket: int
    bucket: int | None
    requests: int
    tokens: int
    lease: str

    @property
    def arguments(self) -> list[str | int]:
        """Return the arguments of SETTLE."""
        bucket = "now" if self.bucket is None else self.bucket
        return [
            value
            for scope in self.scopes
            for value in (scope, bucket, self.requests, self.tokens, self.lease)
        ]


class Settlements:
    """Settlements that Redis has not been sent. `on_new` is called with each."""

    def __init__(self, book: Book, on_new: Callable[[], None]) -> None:
        self._on_new = on_new
        self._book = book
        self._waiting: list[Settlement] = []

    def give_back(self, granted: Granted, requests: int, tokens: int, epoch: int) -> None:
        """Record the release of an ended request: the unused part of its reservation, 0 or more."""
        for budget in granted.budgets:
            if (scope := self._book.scopes.get(budget.scope)) is not None:
                scope.leases.discard(granted.lease)
                given = (-requests, -tokens, granted.by_share)
                self._book.grant(budget.scope, granted.local_bucket, *given)
        if granted.by_share or granted.epoch != epoch:
            return
        self._add(
            Settlement(
                epoch=epoch,
                scopes=[budget.scope for budget in granted.budgets],
                local_bucket=granted.local_bucket,
                bucket=granted.bucket,
                requests=requests,
                tokens=tokens,
                lease=granted.lease,
            )
        )

    def owe(self, granted: Granted, tokens: int, bucket: int, epoch: int | None) -> None:
        """Record that it used this many tokens more than reserved, known in the local `bucket`.

        Without an `epoch` Redis is unavailable: it gets unseen debts when it is back.
        """
        scopes = [budget.scope for budget in granted.budgets if budget.tokens is not None]
        for scope in scopes:
            self._book.grant(scope, bucket, 0, tokens, epoch is None)
        if epoch is not None and scopes:
            self._add(
                Settlement(
                    epoch=epoch,
                    scopes=scopes,
                    local_bucket=bucket,
                    bucket=None,
                    requests=0,
                    tokens=-tokens,
                    lease="",
                )
            )

    def take(self, epoch: int) -> list[Settlement]:
        """Return all of them; those of another epoch, which Redis has received, are dropped."""
        waiting, self._waiting = self._waiting, []
        return [one for one in waiting if one.epoch == epoch]

    def lost(self, settlements: Sequence[Settlement]) -> None:
        """Record settlements without an answer of Redis: debts count as unseen by it."""
        for one in settlements:
            if one.bucket is None:
                for scope in one.scopes:
                    self._book.grant(scope, one.local_bucket, 0, one.tokens, False)
                    self._book.grant(scope, one.local_bucket, 0, -one.tokens, True)

    def put_back(self, settlements: Sequence[Settlement]) -> None:
        """Put back settlements that Redis has not applied."""
        self._waiting[:0] = settlements
        self._on_new()

    def _add(self, settlement: Settlement) -> None:
        self._waiting.append(settlement)
        self._on_new()
