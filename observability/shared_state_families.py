"""Metrics of what a fleet's gateways share in Redis: settings, budgets, canaries, signed values."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge


class SharedStateFamilies:
    """A part of `observability.families`, in its `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="max")
        self.explanations_dropped = counter(
            "antefix_explanations_dropped", "Explanations that could not be stored in Redis."
        )
        self.settings_refused = gauge(
            "antefix_settings_refused",
            "1 while a gateway keeps older settings because it cannot use the newest.",
        )
        self.budgets_by_share = gauge(
            "antefix_budgets_by_share",
            "1 while a gateway enforces tenants' budgets without Redis, by its share.",
        )
        self.redis_full = gauge(
            "antefix_redis_full",
            "1 while Redis rejects writes because it is at `maxmemory` and evicts nothing.",
        )
        self.budget_limit = gauge(
            "antefix_budget_limit",
            "A tenant's limits: requests or tokens in any minute, or concurrent requests; model "
            "is empty for all models together.",
            ["tenant", "model", "kind"],
        )
        self.budget_left = gauge(
            "antefix_budget_left",
            "Requests or tokens left of a tenant's budget at its last request; all after a minute "
            "without one.",
            ["tenant", "model", "kind"],
            multiprocess_mode="min",
        )
        self.budget_refusals = counter(
            "antefix_budget_refusals",
            "Requests rejected by a tenant's budget of requests, tokens, concurrent ones, or "
            "unknown (Redis was unavailable or had just started).",
            ["tenant", "model", "kind"],
        )
        self.leases_forged = gauge(
            "antefix_leases_forged",
            "Leases now in Redis that no replica of the fleet signed. They are ignored.",
            ["pool"],
        )
        self.redis_forged = counter(
            "antefix_redis_forged",
            "Values in Redis that were ignored because the fleet did not sign them: settings, "
            "active, decided, placed, and autoscaler for all that it ignored. Leases are in "
            "antefix_leases_forged.",
            ["kind"],
        )
        self.canary_share = gauge(
            "antefix_canary_share_ratio",
            "A canary's share of its model's new conversations: 0 once it is aborted, 1 once it is "
            "promoted.",
            ["model"],
        )
        self.canary_aborted = gauge(
            "antefix_canary_aborted",
            "1 for a model whose canary was aborted and is still in the fleet file.",
            ["model"],
        )
