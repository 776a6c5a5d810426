"""Tenants: who uses how much, what does it cost, and which tenants have problems?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.common import StackingMode

from observability.alerts.slo_file import SloFile
from observability.dashboards.panels import (
    TOKENS_PER_S,
    Column,
    Row,
    bars,
    board,
    falling,
    figures,
    graph,
    label_variable,
    number,
    rising,
)
from observability.dashboards.queries import (
    POOL,
    TENANT,
    highest,
    or_none,
    portion,
    portion_of,
    rate,
    total,
)

_EXPLANATION = """\
**Use of the fleet by tenant.** API keys belong to tenants. Cost is tokens times the pool's \
`price`, in the currency of that price. Pools without a price cost nothing here.

**Good:** shares are as expected, errors and rejections are spread evenly, much of the prompts is \
cached. **Next:** one tenant is rejected: its limits in the fleet file, and *Capacity*. One \
tenant's prompts are never cached: *Routing*, by its pool. One tenant's budget is used up: its \
`limits`, and its requests."""

_REQUESTS = "antefix_tenant_requests_total"
_TOKENS = "antefix_tenant_tokens_total"
_COST = "antefix_tenant_cost_total"
_NO_PRICE = "no pool has a price"
_LIMIT, _LEFT = "antefix_budget_limit", "antefix_budget_left"
_REJECTIONS = "antefix_budget_rejections_total"
# a budget covers all pools together
_BUDGET, _OF_BUDGET = "tenant, model, kind", 'tenant=~"$tenant"'
_NO_LIMIT = "no tenant has limits"


def dashboard(slo: SloFile) -> build.Dashboard:
    return board(
        "Tenants",
        "Requests, tokens, cost and errors of each tenant, and its share of the total.",
        _EXPLANATION,
        [_at_a_glance(), _use(), _shares(), _budgets(), _trouble()],
        runbooks=slo.runbook_base,
        variables=[
            label_variable(
                "tenant", f"{_REQUESTS}{{{POOL}}}", "Tenants, as the fleet file names their keys."
            )
        ],
    )


def _kind(kind: str) -> str:
    return f'{TENANT}, kind="{kind}"'


def _at_a_glance() -> Row:
    return Row(
        "At a glance",
        [
            number(
                "Tenants",
                "Tenants that have sent a request.",
                f"count(sum by (tenant) ({_REQUESTS}{{{TENANT}}}))",
                "none",
            ),
            number(
                "Requests",
                "Ended requests of these tenants.",
                rate(_REQUESTS, "", TENANT),
                "reqps",
            ),
            number(
                "Output tokens",
                "Tokens generated for these tenants.",
                rate(_TOKENS, "", _kind("output")),
                TOKENS_PER_S,
            ),
            number(
                "Prompt tokens cached",
                "Share of these tenants' prompt tokens that came from a cache.",
                portion_of(rate(_TOKENS, "", _kind("cached")), rate(_TOKENS, "", _kind("prompt"))),
                "percentunit",
            ),
            number(
                "Failed",
                "Share of these tenants' requests that failed or hit their deadline.",
                portion(_REQUESTS, "", 'outcome=~"failed|deadline"', TENANT),
                "percentunit",
                steps=rising(0.001, 0.01),
            ),
            number(
                "Cost",
                "Cost in the time range of the dashboard, in the currency of the pools' prices.",
                f"{total(_COST, '', TENANT)} or vector(0)",
                "short",
            ),
        ],
    )


def _use() -> Row:
    return Row(
        "Use",
        [
            graph(
                "Requests",
                "Ended requests of all outcomes.",
                [(rate(_REQUESTS, "tenant", TENANT), "{{tenant}}")],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Tokens",
                "Prompt tokens, cached prompt tokens, and generated tokens.",
                [(rate(_TOKENS, "tenant, kind", TENANT), "{{kind}} {{tenant}}")],
                TOKENS_PER_S,
            ),
            graph(
                "Cost per hour",
                "Cost at the rate of the last minutes, in the currency of the pools' prices.",
                [
                    (
                        or_none(f"3600 * {rate(_COST, 'tenant', TENANT)}", "tenant", _NO_PRICE),
                        "{{tenant}}",
                    )
                ],
                "short",
                stack=StackingMode.NORMAL,
            ),
            figures(
                "In this time range",
                "Totals per tenant over the time range of the dashboard.",
                ["tenant"],
                [
                    Column("requests", total(_REQUESTS, "tenant", TENANT), "short"),
                    Column("prompt tokens", total(_TOKENS, "tenant", _kind("prompt")), "short"),
                    Column("cached", total(_TOKENS, "tenant", _kind("cached")), "short"),
                    Column("output tokens", total(_TOKENS, "tenant", _kind("output")), "short"),
                    Column(
                        "cost",
                        f"{total(_COST, 'tenant', TENANT)}"
                        f" or 0 * {total(_REQUESTS, 'tenant', TENANT)}",
                        "short",
                    ),
                ],
            ),
        ],
    )


def _shares() -> Row:
    not_counted_twice = 'kind!="cached"'
    return Row(
        "Shares of the total",
        [
            bars(
                "Share of requests",
                "Share of all tenants' requests in these pools and this time range.",
                [(_share_of_all(_REQUESTS), "{{tenant}}")],
                "percentunit",
            ),
            bars(
                "Share of tokens",
                "Share of all tenants' tokens, prompt and output, in this time range.",
                [(_share_of_all(_TOKENS, f", {not_counted_twice}"), "{{tenant}}")],
                "percentunit",
            ),
            bars(
                "Share of cost",
                "Share of all tenants' cost in this time range.",
                [(or_none(_share_of_all(_COST), "tenant", _NO_PRICE), "{{tenant}}")],
                "percentunit",
            ),
        ],
    )


def _budgets() -> Row:
    left = f"min by ({_BUDGET}) ({_LEFT}{{{_OF_BUDGET}}})"
    limit = highest(_LIMIT, _BUDGET, _OF_BUDGET)
    return Row(
        "Budgets",
        [
            graph(
                "Budget left",
                "Share of a tenant's requests or tokens of a minute that is left: the lowest "
                "value of all gateways. Without a model: of all models together.",
                [
                    (
                        or_none(f"{left} / {limit}", "tenant", _NO_LIMIT),
                        "{{kind}} {{tenant}} {{model}}",
                    )
                ],
                "percentunit",
                span=12,
                steps=falling(0.05, 0.2),
                top=1.0,
            ),
            graph(
                "Rejected by the budget",
                "Requests rejected with 429 because their tenant's budget was exhausted, by "
                "limit. unknown means that Redis was unavailable or had just started.",
                [
                    (
                        or_none(rate(_REJECTIONS, _BUDGET, _OF_BUDGET), "tenant", _NO_LIMIT),
                        "{{kind}} {{tenant}} {{model}}",
                    )
                ],
                "reqps",
                span=12,
                stack=StackingMode.NORMAL,
            ),
            figures(
                "Limits",
                "The limits of each tenant: requests and tokens of any minute, and concurrent "
                "requests.",
                ["tenant", "model", "kind"],
                [
                    Column("limit", or_none(limit, "tenant", _NO_LIMIT), "short"),
                    Column("left", or_none(left, "tenant", _NO_LIMIT), "short"),
                    Column(
                        "rejected",
                        or_none(total(_REJECTIONS, _BUDGET, _OF_BUDGET), "tenant", _NO_LIMIT),
                        "short",
                    ),
                ],
            ),
        ],
    )


def _trouble() -> Row:
    return Row(
        "Trouble",
        [
            graph(
                "Failed share",
                "Share of a tenant's requests that failed or hit their deadline.",
                [
                    (
                        portion(_REQUESTS, "tenant", 'outcome=~"failed|deadline"', TENANT),
                        "{{tenant}}",
                    )
                ],
                "percentunit",
                steps=rising(0.001, 0.01),
            ),
            graph(
                "Rejected share",
                "Share of a tenant's requests that were rejected with 429.",
                [(portion(_REQUESTS, "tenant", 'outcome="rejected"', TENANT), "{{tenant}}")],
                "percentunit",
                steps=rising(0.01, 0.1),
            ),
            graph(
                "Requests by outcome",
                "invalid is the client's error (4xx). cancelled means that the client "
                "disconnected.",
                [(rate(_REQUESTS, "tenant, outcome", TENANT), "{{outcome}} {{tenant}}")],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
        ],
    )


def _share_of_all(counter: str, chosen: str = "") -> str:
    """Return the share of these tenants in the total of all tenants of these pools."""
    whole = total(counter, "", POOL + chosen)
    mine = total(counter, "tenant", TENANT + chosen)
    return f"{mine} / on() group_left() clamp_min({whole}, 1e-9)"
