"""A gateway's metrics of tenants' budgets: limits, what is left, and rejections.

A limit is exported from the start, so that a series does not begin with its first rejection. The
rest of a budget is that of the last request, and after a minute without one the whole budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import nan

from observability.metrics.families import Families
from observability.metrics.request_metrics import NAMES_TOLD
from observability.traces.request_record import LimitKind, LimitLeft

# The time after which use no longer counts for a budget.
WINDOW_S = 62.0

# The labels: tenant, model, kind.
_Budget = tuple[str, str, LimitKind]


class BudgetMetrics:
    """Metrics of one gateway, for all tenants with limits; if there are more than NAMES_TOLD, for
    the first."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._tenants: frozenset[str] = frozenset()
        self._limits: dict[_Budget, int] = {}
        # the rest of the budget, and the time of the request that measured it
        self._left: dict[_Budget, tuple[int, float]] = {}

    def change(self, limits: Mapping[str, Sequence[LimitLeft]]) -> None:
        """Set the limits of each tenant."""
        tenants = list(islice((tenant for tenant, own in limits.items() if own), NAMES_TOLD))
        self._tenants = frozenset(tenants)
        before, self._limits = self._limits, {}
        for tenant in tenants:
            for of in limits[tenant]:
                self._limits[tenant, of.model, of.kind] = of.limit
                for kind in (of.kind, "unknown"):
                    self._families.shared.budget_rejections.labels(tenant, of.model, kind)
        # a series cannot be removed while other processes share its file
        for budget in before.keys() - self._limits.keys():
            self._left.pop(budget, None)
            self._families.shared.budget_limit.labels(*budget).set(nan)
            self._families.shared.budget_left.labels(*budget).set(nan)

    def found(self, tenant: str, limits: Iterable[LimitLeft], now: float) -> None:
        """Record the budgets that a request left."""
        for of in limits:
            budget = tenant, of.model, of.kind
            if of.left is not None and budget in self._limits:
                self._left[budget] = of.left, now

    def rejected(self, tenant: str, model: str, kind: str) -> None:
        """Count a rejection: `kind` was exhausted, or the state was unknown ("unknown")."""
        if tenant in self._tenants:
            self._families.buffer.inc(
                self._families.shared.budget_rejections, (tenant, model, kind)
            )

    def refresh(self, now: float) -> None:
        """Update the gauges."""
        for budget, limit in self._limits.items():
            self._families.shared.budget_limit.labels(*budget).set(limit)
            if (left := self._left_now(budget, now)) is not None:
                self._families.shared.budget_left.labels(*budget).set(left)

    @property
    def tenants(self) -> Collection[str]:
        """Those that have limits, up to NAMES_TOLD."""
        return self._tenants

    def left(self, tenants: Collection[str], now: float) -> dict[str, list[LimitLeft]]:
        """The limits of these tenants, and what is left of each, as the gauges have it."""
        found: defaultdict[str, list[LimitLeft]] = defaultdict(list)
        for budget, limit in self._limits.items():
            tenant, model, kind = budget
            if tenant in tenants:
                found[tenant].append(LimitLeft(model, kind, limit, self._left_now(budget, now)))
        return found

    def _left_now(self, budget: _Budget, now: float) -> int | None:
        """None: of concurrent requests, only the limit is known."""
        if budget[2] == "concurrent":
            return None
        limit = self._limits[budget]
        left, found_at = self._left.get(budget, (limit, now))
        return limit if now - found_at > WINDOW_S else left
