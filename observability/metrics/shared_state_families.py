"""Metrics of what a fleet's gateways share in Redis: settings, budgets, canaries, signed values."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge


class SharedStateFamilies:
    """A part of `observability.metrics.families`, in its `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="max")
        self.explanations_dropped = counter(
            "antefix_explanations_dropped", "Explanations that could not be stored in Redis."
        )
        self.settings_refused = gauge(
            "antefix_settings_refused",
            "1 while a gateway keeps older settings because it cannot use the newest ones.",
        )
        self.budgets_by_share = gauge(
            "antefix_budgets_by_share",
            "1 while a gateway enforces the budgets of tenants without Redis, with its share of "
            "each limit.",
        )
        self.tenants_held = gauge(
            "antefix_tenants_held",
            "Number of tenants that get one request at a time, because engines were lost while "
            "they ran requests of these tenants.",
        )
        self.redis_full = gauge(
            "antefix_redis_full",
            "1 while Redis rejects writes because it has reached `maxmemory` and evicts nothing.",
        )
        self.budget_limit = gauge(
            "antefix_budget_limit",
            "Limits of a tenant, by kind: requests or tokens in any minute, or concurrent "
            "requests. The label model is empty for the limits of all models together.",
            ["tenant", "model", "kind"],
        )
        self.budget_left = gauge(
            "antefix_budget_left",
            "Requests or tokens that were left of a tenant's budget at its last request. After a "
            "minute without a request, it is the whole budget.",
            ["tenant", "model", "kind"],
            multiprocess_mode="min",
        )
        self.budget_rejections = counter(
            "antefix_budget_rejections",
            "Requests rejected by a tenant's budget of requests, tokens, concurrent ones, or "
            "unknown (Redis was unavailable or had just started).",
            ["tenant", "model", "kind"],
        )
        self.leases_forged = gauge(
            "antefix_leases_forged",
            "Number of leases in Redis that no replica of the fleet has signed. They are ignored.",
            ["pool"],
        )
        self.redis_forged = counter(
            "antefix_redis_forged",
            "Values in Redis that were ignored because the fleet had not signed them, by kind: "
            "settings, active, decided, placed, and autoscaler for all values that the autoscaler "
            "ignored. antefix_leases_forged counts leases.",
            ["kind"],
        )
        self.canary_share = gauge(
            "antefix_canary_share_ratio",
            "Share of its model's new conversations that a canary gets: 0 after it was aborted, 1 "
            "after it was promoted.",
            ["model"],
        )
        self.canary_aborted = gauge(
            "antefix_canary_aborted",
            "1 for a model whose canary was aborted and is still in the fleet file.",
            ["model"],
        )
