"""This gateway process's recent traffic, and the remaining budgets of tenants, for the page.

Tenants see their own part. `tenant` None: for operators, who see all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from deployments.gateway.api.request_codes import INVALID_VALUE
from deployments.gateway.intake.api_errors import ApiError
from observability.metrics.budget_metrics import BudgetMetrics
from observability.metrics.traffic import POOL_MINUTES, ServedTraffic
from observability.traces.request_record import Outcome

# Only the busiest, since a page cannot list a thousand tenants.
TENANTS_SHOWN = 50
_OUTCOMES: tuple[str, ...] = get_args(Outcome)


def minutes_of(value: str | None) -> int | None:
    """Return the number in the query parameter `minutes`; None: no history. Raises ApiError 400."""
    if value is None:
        return None
    minutes = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
    if not 1 <= minutes <= POOL_MINUTES:
        message = (
            f"'minutes' is {value[:100]!r}, but it must be a whole number from 1 to {POOL_MINUTES}."
        )
        raise ApiError(INVALID_VALUE, message, param="minutes")
    return minutes


def pool_traffic(
    traffic: ServedTraffic, pool: str, tenant: str | None, minutes: int | None
) -> dict[str, Any]:
    """Return a pool's counts: in total, and of the last `minutes` in steps.

    Totals are since the process began.
    """
    counts = traffic.of(pool, tenant)
    history = None if minutes is None else vars(counts.history(traffic.minute, minutes))
    return {"total": counts.total(), "history": history}


def tenants_status(
    traffic: ServedTraffic,
    budgets: BudgetMetrics,
    tenant: str | None,
    now: float,
    is_held: Callable[[str], bool] = lambda tenant: False,
) -> dict[str, Any]:
    """Return the busiest tenants' counts of the last hour and limits, up to TENANTS_SHOWN.

    `now` is the event loop's time. `is_held`: a tenant gets one request at a time.
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
                **({"held": True} if is_held(name) else {}),
            }
            for name in shown
        ],
        "tenants_not_shown": len(ranked) - len(shown),
    }


def _requests(counts: Mapping[str, int]) -> int:
    return sum(counts.get(outcome, 0) for outcome in _OUTCOMES)
