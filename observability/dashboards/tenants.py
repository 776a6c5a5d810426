"""Tenants: who uses how much, what does it cost, and which tenants have problems?"""

from __future__ import annotations

from observability.dashboards.levels import falling, rising
from observability.dashboards.panels import (
    SHARE,
    TOKENS_PER_S,
    Bars,
    Board,
    Column,
    Graph,
    Number,
    Table,
    Variable,
)
from observability.dashboards.queries import (
    FAILED,
    POOL,
    TENANT,
    highest,
    lowest,
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
# The labels and the matchers of a query: one series for all chosen tenants, or one for each.
_ALL, _EACH = ("", TENANT), ("tenant", TENANT)
_FAILING = rising(0.001, 0.01)


def _kind(kind: str) -> str:
    return f'{TENANT}, kind="{kind}"'


_CACHED = portion_of(rate(_TOKENS, "", _kind("cached")), rate(_TOKENS, "", _kind("prompt")))

_AT_A_GLANCE = [
    Number("Tenants", f"count(sum by (tenant) ({_REQUESTS}{{{TENANT}}}))").about(
        "Tenants that have sent a request."
    ),
    Number("Requests", rate(_REQUESTS, *_ALL), "reqps").about("Ended requests of these tenants."),
    Number("Output tokens", rate(_TOKENS, "", _kind("output")), TOKENS_PER_S).about(
        "Tokens generated for these tenants."
    ),
    Number("Prompt tokens cached", _CACHED, SHARE).about(
        "Share of these tenants' prompt tokens that came from a cache."
    ),
    Number("Failed", portion(_REQUESTS, "", FAILED, TENANT), SHARE, _FAILING).about(
        "Share of these tenants' requests that failed or hit their deadline."
    ),
    Number("Cost", f"{total(_COST, *_ALL)} or vector(0)", "short").about(
        "Cost in the time range of the dashboard, in the currency of the pools' prices."
    ),
]


def _or_no_price(expr: str) -> str:
    return or_none(expr, "tenant", "no pool has a price")


_COST_OR_NONE = f"{total(_COST, *_EACH)} or 0 * {total(_REQUESTS, *_EACH)}"

_USE = [
    Graph("Requests", rate(_REQUESTS, *_EACH), "reqps", stacked=True).about(
        "Ended requests of all outcomes."
    ),
    Graph(
        "Tokens", {"{{kind}} {{tenant}}": rate(_TOKENS, "tenant, kind", TENANT)}, TOKENS_PER_S
    ).about("Prompt tokens, cached prompt tokens, and generated tokens."),
    Graph(
        "Cost per hour", _or_no_price(f"3600 * {rate(_COST, *_EACH)}"), "short", stacked=True
    ).about("Cost at the rate of the last minutes, in the currency of the pools' prices."),
    Table(
        "In this time range",
        [
            Column("requests", total(_REQUESTS, *_EACH), "short"),
            Column("prompt tokens", total(_TOKENS, "tenant", _kind("prompt")), "short"),
            Column("cached", total(_TOKENS, "tenant", _kind("cached")), "short"),
            Column("output tokens", total(_TOKENS, "tenant", _kind("output")), "short"),
            Column("cost", _COST_OR_NONE, "short"),
        ],
    ).about("Totals per tenant over the time range of the dashboard."),
]


def _share_of_all(counter: str, chosen: str = "") -> str:
    """Return the share of these tenants in the total of all tenants of these pools."""
    whole = total(counter, "", POOL + chosen)
    mine = total(counter, "tenant", TENANT + chosen)
    return f"{mine} / on() group_left() clamp_min({whole}, 1e-9)"


# Cached tokens are prompt tokens too.
_NOT_COUNTED_TWICE = ', kind!="cached"'

_SHARES = [
    Bars("Share of requests", _share_of_all(_REQUESTS), SHARE).about(
        "Share of all tenants' requests in these pools and this time range."
    ),
    Bars("Share of tokens", _share_of_all(_TOKENS, _NOT_COUNTED_TWICE), SHARE).about(
        "Share of all tenants' tokens, prompt and output, in this time range."
    ),
    Bars("Share of cost", _or_no_price(_share_of_all(_COST)), SHARE).about(
        "Share of all tenants' cost in this time range."
    ),
]

# a budget covers all pools together
_OF_BUDGET = ("tenant, model, kind", 'tenant=~"$tenant"')


def _or_no_limit(expr: str) -> str:
    return or_none(expr, "tenant", "no tenant has limits")


def _by_kind(expr: str) -> dict[str, str]:
    return {"{{kind}} {{tenant}} {{model}}": _or_no_limit(expr)}


_LIMIT = highest("antefix_budget_limit", *_OF_BUDGET)
_LEFT = lowest("antefix_budget_left", *_OF_BUDGET)
_REJECTIONS = "antefix_budget_rejections_total"

_BUDGETS = [
    Graph(
        "Budget left", _by_kind(f"{_LEFT} / {_LIMIT}"), SHARE, falling(0.05, 0.2), top=1.0, span=12
    ).about(
        "Share of a tenant's requests or tokens of a minute that is left: the lowest value of all "
        "gateways. Without a model: of all models together."
    ),
    Graph(
        "Rejected by the budget",
        _by_kind(rate(_REJECTIONS, *_OF_BUDGET)),
        "reqps",
        stacked=True,
        span=12,
    ).about(
        "Requests rejected with 429 because their tenant's budget was exhausted, by limit. unknown "
        "means that Redis was unavailable or had just started."
    ),
    Table(
        "Limits",
        [
            Column("limit", _or_no_limit(_LIMIT), "short"),
            Column("left", _or_no_limit(_LEFT), "short"),
            Column("rejected", _or_no_limit(total(_REJECTIONS, *_OF_BUDGET)), "short"),
        ],
    ).about(
        "The limits of each tenant: requests and tokens of any minute, and concurrent requests."
    ),
]

_REJECTED = portion(_REQUESTS, "tenant", 'outcome="rejected"', TENANT)
_BY_OUTCOME = rate(_REQUESTS, "tenant, outcome", TENANT)

_TROUBLE = [
    Graph("Failed share", portion(_REQUESTS, "tenant", FAILED, TENANT), SHARE, _FAILING).about(
        "Share of a tenant's requests that failed or hit their deadline."
    ),
    Graph("Rejected share", _REJECTED, SHARE, rising(0.01, 0.1)).about(
        "Share of a tenant's requests that were rejected with 429."
    ),
    Graph(
        "Requests by outcome", {"{{outcome}} {{tenant}}": _BY_OUTCOME}, "reqps", stacked=True
    ).about("invalid is the client's error (4xx). cancelled means that the client disconnected."),
]

BOARD = Board(
    "Tenants",
    "Requests, tokens, cost and errors of each tenant, and its share of the total.",
    _EXPLANATION,
    {
        "At a glance": _AT_A_GLANCE,
        "Use": _USE,
        "Shares of the total": _SHARES,
        "Budgets": _BUDGETS,
        "Trouble": _TROUBLE,
    },
    variables=[
        Variable("tenant", f"{_REQUESTS}{{{POOL}}}", "Tenants, as the fleet file names their keys.")
    ],
)
