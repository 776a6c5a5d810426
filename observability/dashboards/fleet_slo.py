"""Fleet SLO: does the fleet meet its objectives, and how fast does it use its error budgets?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.common import StackingMode

from observability.alerts.slo_file import SloFile
from observability.dashboards.levels import burn_steps, steps
from observability.dashboards.panels import (
    GREEN,
    RED,
    TOKENS_PER_S,
    Column,
    Row,
    board,
    falling,
    figures,
    graph,
    number,
)
from observability.dashboards.queries import (
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
_BY_SLO, _SLO_LEGEND = "slo, pool", "{{slo}} {{pool}}"
_BUDGET_LEFT = highest("slo:period_error_budget_remaining:ratio", _BY_SLO)
_EVENTS = "antefix_slo_events_total"
_FAILED = 'outcome=~"failed|deadline"'
_BAD_FROM_ONE = ((None, GREEN), (1, RED))
_FIRING = 'alertstate="firing", pool=~"$pool|"'


def dashboard(slo: SloFile) -> build.Dashboard:
    return board(
        "Fleet SLO",
        "Objectives, error budgets and burn rates; latency, throughput, errors and alerts.",
        _EXPLANATION,
        [_at_a_glance(slo), _objectives(), _latency(), _traffic(slo), _models(slo)],
        runbooks=slo.runbook_base,
    )


def _at_a_glance(slo: SloFile) -> Row:
    return Row(
        "At a glance",
        [
            number(
                "Worst budget left",
                "The smallest error budget left over 30 days, of all objectives of these pools. "
                "Below 0 the objective is missed.",
                f"min(slo:period_error_budget_remaining:ratio{{{POOL}}})",
                "percentunit",
                steps=_BUDGET,
            ),
            number(
                "Fastest burn",
                "The highest burn rate of the last five minutes. Below 1 is sustainable.",
                f"max(slo:current_burn_rate:ratio{{{POOL}}})",
                "none",
                steps=_BURN,
            ),
            number(
                "Alerts firing",
                "Alerts of these pools, and of the whole fleet.",
                f"count(ALERTS{{{_FIRING}}}) or vector(0)",
                "none",
                steps=_BAD_FROM_ONE,
            ),
            number(
                "Requests",
                "Ended requests of all outcomes.",
                rate("antefix_requests_total"),
                "reqps",
            ),
            number(
                "Failed",
                "Share of requests that failed or hit their deadline. Limits: slo.yaml.",
                portion("antefix_requests_total", "", _FAILED),
                "percentunit",
                steps=steps(slo, "AntefixErrorRateHigh"),
            ),
            number(
                "Goodput",
                "Share of requests that met all objectives of their class.",
                portion(_EVENTS, "", 'result="good"', f'{POOL}, objective="goodput"'),
                "percentunit",
                steps=falling(0.9, 0.95),
            ),
        ],
    )


def _objectives() -> Row:
    missed = highest("slo:sli_error:ratio_rate30d", _BY_SLO)
    burn = highest("slo:current_burn_rate:ratio", _BY_SLO)
    burn_30d = highest("slo:period_burn_rate:ratio", _BY_SLO)
    return Row(
        "Objectives",
        [
            figures(
                "State of each objective",
                "Per objective and pool: the target, the value over 30 days, the error budget "
                "left, and its burn rate.",
                ["slo", "pool"],
                [
                    Column("promised", highest("slo:objective:ratio", _BY_SLO), "percentunit"),
                    Column("kept (30 d)", f"1 - {missed}", "percentunit"),
                    Column("budget left", _BUDGET_LEFT, "percentunit", _BUDGET),
                    Column("burn (5 min)", burn, "none", _BURN),
                    Column("burn (30 d)", burn_30d, "none", _BURN),
                ],
            ),
            graph(
                "Error budget left",
                "It falls when requests miss the objective, and recovers as they leave the 30 "
                "days. Level or rising is good. Below 0 the objective is missed.",
                [(_BUDGET_LEFT, _SLO_LEGEND)],
                "percentunit",
                span=12,
                steps=_BUDGET,
            ),
            graph(
                "Burn rate, by the hour",
                "1 uses the budget up in exactly 30 days. Pages start at 14.4 over an hour and at "
                "6 over six hours.",
                [(_burn("1h"), f"{_SLO_LEGEND} 1 h"), (_burn("6h"), f"{_SLO_LEGEND} 6 h")],
                "none",
                span=12,
                steps=_BURN,
            ),
        ],
    )


def _latency() -> Row:
    by = "pool, priority"
    ttft_objective = (_threshold("ttft|ttft_p50"), "objective {{objective}} {{pool}} {{priority}}")
    tpot_objective, e2e_objective = (
        (or_none(_threshold(name), "pool", "none set"), "objective {{pool}} {{priority}}")
        for name in ("tpot", "e2e")
    )
    within = portion(_EVENTS, "pool, objective", 'result="good"')
    return Row(
        "Latency",
        [
            graph(
                "Time to first token",
                "Time from a request's arrival at the gateway to its first token. p50 and p99 "
                "should stay below the dashed lines, which are the pool's objectives.",
                [*median_and_tail("antefix_ttft_seconds", by), ttft_objective],
                "s",
                dashed="/^objective/",
            ),
            graph(
                "Time per output token",
                "Mean time between the tokens of a request, after its first. It rises when "
                "batches are large or prompts interrupt decoding.",
                [*median_and_tail("antefix_tpot_seconds", by), tpot_objective],
                "s",
                dashed="/^objective/",
            ),
            graph(
                "End to end",
                "Time from arrival to the last byte, streamed or not. It depends on the length of "
                "answers: compare it with its past, or with the pool's `e2e_s` (dashed) where it "
                "is set.",
                [*median_and_tail("antefix_request_duration_seconds", by), e2e_objective],
                "s",
                dashed="/^objective/",
            ),
            graph(
                "Gaps between tokens",
                "Time between the chunks of a stream as the client receives them. Readers see it "
                "as stutter.",
                median_and_tail("antefix_inter_token_latency_seconds", "pool"),
                "s",
            ),
            graph(
                "Share within objective",
                "Share of the last minutes' requests that met each objective. 1 is good.",
                [(within, "{{objective}} {{pool}}")],
                "percentunit",
                top=1,
            ),
            graph(
                "Goodput",
                "Requests per second that met all objectives of their class, against all requests "
                "that count. The gap is wasted work.",
                [(_goodput("good"), "good {{pool}}"), (_goodput("good|bad"), "all {{pool}}")],
                "reqps",
            ),
        ],
    )


def _traffic(slo: SloFile) -> Row:
    errors = rate("antefix_errors_total", "kind", 'pool=~"$pool|"')
    rejected = f'{POOL}, outcome="rejected"'
    rejections = rate("antefix_requests_total", "pool, priority", rejected)
    firing = f"count by (alertname, severity, pool) (ALERTS{{{_FIRING}}})"
    return Row(
        "Traffic and errors",
        [
            graph(
                "Requests by outcome",
                "ok and cancelled are fine. rejected means no capacity (429). deadline and failed "
                "use the availability budget.",
                [(rate("antefix_requests_total", "outcome"), "{{outcome}}")],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Tokens",
                "Prompt tokens served and tokens generated.",
                [
                    (rate("antefix_prompt_tokens_total", "pool"), "prompt {{pool}}"),
                    (rate("antefix_output_tokens_total", "pool"), "output {{pool}}"),
                ],
                TOKENS_PER_S,
            ),
            graph(
                "Failed share",
                "Share of requests that failed or hit their deadline. Limits: slo.yaml.",
                [(portion("antefix_requests_total", "pool", _FAILED), "{{pool}}")],
                "percentunit",
                steps=steps(slo, "AntefixErrorRateHigh"),
            ),
            graph(
                "Errors by kind",
                "Error responses by code. Those before the pool was known (a wrong key, an "
                "unknown model) count for every pool.",
                [(or_none(errors, "kind"), "{{kind}}")],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Rejected (429)",
                "Requests rejected because they could not have been served in time. Some at peaks "
                "is normal. A constant rate means too few replicas.",
                [(or_none(rejections, "pool"), "{{pool}} {{priority}}")],
                "reqps",
            ),
            figures(
                "Alerts firing",
                "Every alert that fires for these pools or for the whole fleet. One row called "
                "none is the target state.",
                ["alertname", "severity", "pool"],
                [Column("firing", or_none(firing, "alertname"), "none", _BAD_FROM_ONE)],
                span=8,
            ),
        ],
    )


def _models(slo: SloFile) -> Row:
    requests, tokens = "antefix_model_requests_total", "antefix_model_tokens_total"
    return Row(
        "Models and adapters",
        [
            graph(
                "Requests by model",
                "Ended requests by the model asked for: a route, a pool's own model or an adapter.",
                [(rate(requests, "model, adapter, pool"), "{{model}} {{adapter}} in {{pool}}")],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Failed share by model",
                "Share of a model's requests that failed or hit their deadline.",
                [(portion(requests, "model, adapter", _FAILED), "{{model}} {{adapter}}")],
                "percentunit",
                steps=steps(slo, "AntefixErrorRateHigh"),
            ),
            graph(
                "Tokens by model",
                "Prompt tokens, cached prompt tokens, and generated tokens.",
                [(rate(tokens, "model, adapter, kind"), "{{kind}} {{model}} {{adapter}}")],
                TOKENS_PER_S,
            ),
            graph(
                "Adapters in memory",
                "LoRA adapters in the memory of each pool's engines, all replicas together.",
                [(or_none(added("antefix_adapters_resident", "pool"), "pool"), "{{pool}}")],
                "short",
            ),
            graph(
                "Adapter loads",
                "LoRA adapters read into memory. A constant rate means that a pool's requests are "
                "for more adapters than its engines hold.",
                [(or_none(rate("antefix_adapter_loads_total", "pool"), "pool"), "{{pool}}")],
                "ops",
            ),
        ],
    )


def _burn(window: str) -> str:
    errors = highest(f"slo:sli_error:ratio_rate{window}", _BY_SLO)
    return ratio(errors, highest("slo:error_budget:ratio", _BY_SLO))


def _goodput(results: str) -> str:
    matchers = f'{POOL}, objective="goodput", result=~"{results}"'
    return rate(_EVENTS, "pool", matchers)


def _threshold(objectives: str) -> str:
    matchers = f'{POOL}, objective=~"{objectives}"'
    return highest("antefix_slo_threshold_seconds", "pool, priority, objective", matchers)
