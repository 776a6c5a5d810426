"""This gateway process's recent traffic, and the remaining budgets of tenants, for the page.

Tenants see their own part. `tenant` None: for operators, who see all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.gateway.intake.errors import ApiError
from observability.budget_metrics import BudgetMetrics
from observability.traffic import POOL_MINUTES, ServedTraffic

# Only the busiest, since a page cannot list a thousand tenants.
TENANTS_SHOWN = 50
_OUTCOMES = ("ok", "invalid", "rejected", "deadline", "failed", "cancelled")


def minutes_of(value: str | None) -> int | None:
    """Return the number in the query parameter `minutes`; None: no history. Raises ApiError 400."""
    if value is None:
        return None
    minutes = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
    if not 1 <= minutes <= POOL_MINUTES:
        message = (
            f"'minutes' is {value[:100]!r}, but it must be a whole number from 1 to {POOL_MINUTES}."
        )
        raise ApiError(400, message, code="invalid_value", param="minutes")
    return minutes


def pool_traffic(
    traffic: ServedTraffic, pool: str, tenant: str | None, minutes: int | None
) -> dict[str, Any]:
    """Return a pool's counts (`observability.traffic`): in total, and the last `minutes` in steps.

    Totals are since the process began.
    """
    counts = traffic.of(pool, tenant)
    history = None if minutes is None else vars(counts.history(traffic.minute, minutes))
    return {"total": counts.total(), "history": history}


def tenants_status(
    traffic: ServedTraffic, budgets: BudgetMetrics, tenant: str | None, now: float
) -> dict[str, Any]:
    """Return the busiest tenants' counts of the last hour and limits, up to TENANTS_SHOWN.

    `now` is the event loop's time.
    """
    used = traffic.by_tenant()
    names = {*used, *budgets.tenants} if tenant is None else {tenant}
    ranked = sorted(names, key=lambda name: (-_requests(used.get(name, {})), name))
    shown = ranked[:TENANTS_SHOWN]
    limits = budgets.left(shown, now)
    return {
        "tenants": [
            {
                "tenant": name,
                "last_hour": used.get(name, {}),
                "limits": [vars(limit) for limit in limits.get(name, ())],
            }
            for name in shown
        ],
        "tenants_not_shown": len(ranked) - len(shown),
    }


def _requests(counts: Mapping[str, int]) -> int:
    return sum(counts.get(outcome, 0) for outcome in _OUTCOMES)
