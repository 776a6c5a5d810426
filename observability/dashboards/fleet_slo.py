"""Fleet SLO: does the fleet meet its objectives, and how fast does it use its error budgets?"""

from __future__ import annotations

from observability.dashboards.levels import BAD_FROM_ONE, burn_steps, falling
from observability.dashboards.panels import SHARE, TOKENS_PER_S, Board, Column, Graph, Number, Table
from observability.dashboards.queries import (
    FAILED,
    POOL,
    added,
    highest,
    median_and_tail,
    or_none,
    portion,
    rate,
    ratio,
)

_EXPLANATION = """\
**The objectives of each pool, and whether it meets them.** An objective is a share of requests \
that must be good over 30 days. The remaining share is its *error budget*. The *burn rate* is the \
speed at which requests use it: at 1 it lasts exactly the 30 days, at 14.4 an hour uses two per \
cent of it.

**Good:** every budget is above a quarter, burn rates are below 1, no alert fires. **Next:** TTFT \
is bad: *Capacity* (is there a queue?), then *Routing* (are prompts recomputed?). TPOT is \
bad: *Engine*. One tenant only: *Tenants*."""

_BUDGET = falling(0, 0.25)
_BURN = burn_steps()
_BY_SLO = "slo, pool"
_REMAINING = "slo:period_error_budget_remaining:ratio"
_EVENTS = "antefix_slo_events_total"
_GOODPUT = f'{POOL}, objective="goodput"'
_FIRING = 'ALERTS{alertstate="firing", pool=~"$pool|"}'

_AT_A_GLANCE = [
    Number("Worst budget left", f"min({_REMAINING}{{{POOL}}})", SHARE, _BUDGET).about(
        "The smallest error budget left over 30 days, of all objectives of these pools. Below 0 "
        "the objective is missed."
    ),
    Number("Fastest burn", highest("slo:current_burn_rate:ratio"), steps=_BURN).about(
        "The highest burn rate of the last five minutes. Below 1 is sustainable."
    ),
    Number("Alerts firing", f"count({_FIRING}) or vector(0)", steps=BAD_FROM_ONE).about(
        "Alerts of these pools, and of the whole fleet."
    ),
    Number("Requests", rate("antefix_requests_total"), "reqps").about(
        "Ended requests of all outcomes."
    ),
    Number(
        "Failed", portion("antefix_requests_total", "", FAILED), SHARE, "AntefixErrorRateHigh"
    ).about("Share of requests that failed or hit their deadline. Limits: slo.yaml."),
    Number(
        "Goodput", portion(_EVENTS, "", 'result="good"', _GOODPUT), SHARE, falling(0.9, 0.95)
    ).about("Share of requests that met all objectives of their class."),
]


def _burn(window: str) -> str:
    errors = highest(f"slo:sli_error:ratio_rate{window}", _BY_SLO)
    return ratio(errors, highest("slo:error_budget:ratio", _BY_SLO))


_BUDGET_LEFT = highest(_REMAINING, _BY_SLO)
_KEPT = f"1 - {highest('slo:sli_error:ratio_rate30d', _BY_SLO)}"

_OBJECTIVES = [
    Table(
        "State of each objective",
        [
            Column("promised", highest("slo:objective:ratio", _BY_SLO), SHARE),
            Column("kept (30 d)", _KEPT, SHARE),
            Column("budget left", _BUDGET_LEFT, SHARE, _BUDGET),
            Column("burn (5 min)", highest("slo:current_burn_rate:ratio", _BY_SLO), steps=_BURN),
            Column("burn (30 d)", highest("slo:period_burn_rate:ratio", _BY_SLO), steps=_BURN),
        ],
    ).about(
        "Per objective and pool: the target, the value over 30 days, the error budget left, and "
        "its burn rate."
    ),
    Graph("Error budget left", _BUDGET_LEFT, SHARE, _BUDGET, span=12).about(
        "It falls when requests miss the objective, and recovers as they leave the 30 days. Level "
        "or rising is good. Below 0 the objective is missed."
    ),
    Graph(
        "Burn rate, by the hour",
        {"{{slo}} {{pool}} 1 h": _burn("1h"), "{{slo}} {{pool}} 6 h": _burn("6h")},
        steps=_BURN,
        span=12,
    ).about(
        "1 uses the budget up in exactly 30 days. Pages start at 14.4 over an hour and at 6 over "
        "six hours."
    ),
]


def _threshold(objectives: str) -> str:
    matchers = f'{POOL}, objective=~"{objectives}"'
    return highest("antefix_slo_threshold_seconds", "pool, priority, objective", matchers)


def _percentiles(title: str, histogram: str, objective: dict[str, str]) -> Graph:
    """Return the p50 and p99 of a histogram, and a pool's objective as a dashed line."""
    queries = median_and_tail(histogram, "pool, priority") | objective
    return Graph(title, queries, "s", dashed="/^objective/")


def _if_set(objective: str) -> dict[str, str]:
    return {"objective {{pool}} {{priority}}": or_none(_threshold(objective), "pool", "none set")}


def _goodput(results: str) -> str:
    return rate(_EVENTS, "pool", f'{_GOODPUT}, result=~"{results}"')


_TTFT = {"objective {{objective}} {{pool}} {{priority}}": _threshold("ttft|ttft_p50")}
_WITHIN = portion(_EVENTS, "pool, objective", 'result="good"')

_LATENCY = [
    _percentiles("Time to first token", "antefix_ttft_seconds", _TTFT).about(
        "Time from a request's arrival at the gateway to its first token. p50 and p99 should stay "
        "below the dashed lines, which are the pool's objectives."
    ),
    _percentiles("Time per output token", "antefix_tpot_seconds", _if_set("tpot")).about(
        "Mean time between the tokens of a request, after its first. It rises when batches are "
        "large or prompts interrupt decoding."
    ),
    _percentiles("End to end", "antefix_request_duration_seconds", _if_set("e2e")).about(
        "Time from arrival to the last byte, streamed or not. It depends on the length of answers: "
        "compare it with its past, or with the pool's `e2e_s` (dashed) where it is set."
    ),
    Graph(
        "Gaps between tokens", median_and_tail("antefix_inter_token_latency_seconds", "pool"), "s"
    ).about(
        "Time between the chunks of a stream as the client receives them. Readers see it as "
        "stutter."
    ),
    Graph("Share within objective", {"{{objective}} {{pool}}": _WITHIN}, SHARE, top=1).about(
        "Share of the last minutes' requests that met each objective. 1 is good."
    ),
    Graph(
        "Goodput",
        {"good {{pool}}": _goodput("good"), "all {{pool}}": _goodput("good|bad")},
        "reqps",
    ).about(
        "Requests per second that met all objectives of their class, against all requests that "
        "count. The gap is wasted work."
    ),
]

_FAILED_SHARE = portion("antefix_requests_total", "pool", FAILED)
_ERRORS = rate("antefix_errors_total", "kind", 'pool=~"$pool|"')
_REJECTED = rate("antefix_requests_total", "pool, priority", f'{POOL}, outcome="rejected"')
_ALERTS = f"count by (alertname, severity, pool) ({_FIRING})"

_TRAFFIC = [
    Graph(
        "Requests by outcome", rate("antefix_requests_total", "outcome"), "reqps", stacked=True
    ).about(
        "ok and cancelled are fine. rejected means no capacity (429). deadline and failed use the "
        "availability budget."
    ),
    Graph(
        "Tokens",
        {
            "prompt {{pool}}": rate("antefix_prompt_tokens_total", "pool"),
            "output {{pool}}": rate("antefix_output_tokens_total", "pool"),
        },
        TOKENS_PER_S,
    ).about("Prompt tokens served and tokens generated."),
    Graph("Failed share", _FAILED_SHARE, SHARE, "AntefixErrorRateHigh").about(
        "Share of requests that failed or hit their deadline. Limits: slo.yaml."
    ),
    Graph("Errors by kind", or_none(_ERRORS, "kind"), "reqps", stacked=True).about(
        "Error responses by code. Those before the pool was known (a wrong key, an unknown model) "
        "count for every pool."
    ),
    Graph("Rejected (429)", or_none(_REJECTED, "pool"), "reqps").about(
        "Requests rejected because they could not have been served in time. Some at peaks is "
        "normal. A constant rate means too few replicas."
    ),
    Table(
        "Alerts firing",
        [Column("firing", or_none(_ALERTS, "alertname"), steps=BAD_FROM_ONE)],
        span=8,
    ).about(
        "Every alert that fires for these pools or for the whole fleet. One row called none is the "
        "target state."
    ),
]

_BY_MODEL = rate("antefix_model_requests_total", "model, adapter, pool")
_FAILED_BY_MODEL = portion("antefix_model_requests_total", "model, adapter", FAILED)
_TOKENS = rate("antefix_model_tokens_total", "model, adapter, kind")

_MODELS = [
    Graph(
        "Requests by model", {"{{model}} {{adapter}} in {{pool}}": _BY_MODEL}, "reqps", stacked=True
    ).about("Ended requests by the model asked for: a route, a pool's own model or an adapter."),
    Graph("Failed share by model", _FAILED_BY_MODEL, SHARE, "AntefixErrorRateHigh").about(
        "Share of a model's requests that failed or hit their deadline."
    ),
    Graph("Tokens by model", {"{{kind}} {{model}} {{adapter}}": _TOKENS}, TOKENS_PER_S).about(
        "Prompt tokens, cached prompt tokens, and generated tokens."
    ),
    Graph(
        "Adapters in memory", or_none(added("antefix_adapters_resident", "pool"), "pool"), "short"
    ).about("LoRA adapters in the memory of each pool's engines, all replicas together."),
    Graph(
        "Adapter loads", or_none(rate("antefix_adapter_loads_total", "pool"), "pool"), "ops"
    ).about(
        "LoRA adapters read into memory. A constant rate means that a pool's requests are for more "
        "adapters than its engines hold."
    ),
]

BOARD = Board(
    "Fleet SLO",
    "Objectives, error budgets and burn rates; latency, throughput, errors and alerts.",
    _EXPLANATION,
    {
        "At a glance": _AT_A_GLANCE,
        "Objectives": _OBJECTIVES,
        "Latency": _LATENCY,
        "Traffic and errors": _TRAFFIC,
        "Models and adapters": _MODELS,
    },
)
