"""Fleet SLO: does the fleet keep its promises, and how fast is it using up what may go wrong?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.common import StackingMode

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
    highest,
    median_and_tail,
    or_none,
    portion,
    rate,
    ratio,
)
from observability.slo import SloFile

_EXPLANATION = """\
**What each pool promises, and whether it keeps it.** An objective is a share of requests that \
must be good over 30 days; what is left of the rest is its *error budget*. The *burn rate* says \
how fast that is used up: at 1 it lasts exactly the 30 days, at 14.4 two per cent of it are gone \
in an hour.

**Good:** every budget is above a quarter, burn rates are below 1, no alert fires. **Next:** TTFT \
is bad: *Capacity* (is there a queue?), then *Routing* (are prompts computed again?). TPOT is \
bad: *Engine*. One customer only: *Tenants*."""

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
        [_at_a_glance(slo), _objectives(), _latency(), _traffic(slo)],
        runbooks=slo.runbook_base,
    )


def _at_a_glance(slo: SloFile) -> Row:
    return Row(
        "At a glance",
        [
            number(
                "Worst budget left",
                "The smallest error budget that any objective of these pools has left of "
                "its 30 days. Below 0 the objective is missed.",
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
                "Alerts of these pools, and those of the fleet as a whole.",
                f"count(ALERTS{{{_FIRING}}}) or vector(0)",
                "none",
                steps=_BAD_FROM_ONE,
            ),
            number(
                "Requests",
                "Requests that ended, whatever became of them.",
                rate("antefix_requests_total"),
                "reqps",
            ),
            number(
                "Failed",
                "Share of requests that failed or ran out of time. Limits: slo.yaml.",
                portion("antefix_requests_total", "", _FAILED),
                "percentunit",
                steps=steps(slo, "AntefixErrorRateHigh"),
            ),
            number(
                "Goodput",
                "Share of requests that were served within all objectives of their class.",
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
                "Per objective and pool: what is promised, what was kept over 30 days, how "
                "much of the error budget is left and how fast it burns.",
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
                "Falls when requests miss the objective, recovers as those leave the 30 "
                "days. Level or rising is good; below 0 the promise is broken.",
                [(_BUDGET_LEFT, _SLO_LEGEND)],
                "percentunit",
                span=12,
                steps=_BUDGET,
            ),
            graph(
                "Burn rate, by the hour",
                "1 uses the budget up in exactly 30 days. An alert that pages begins at "
                "14.4 over an hour and at 6 over six hours.",
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
                "From a request's arrival at the gateway. p50 and p99 should stay below "
                "the dashed lines, which are the pool's objectives.",
                [*median_and_tail("antefix_ttft_seconds", by), ttft_objective],
                "s",
                dashed="/^objective/",
            ),
            graph(
                "Time per output token",
                "Mean time between the tokens of a request, after its first. Rises when "
                "batches are large or prompts interrupt decoding.",
                [*median_and_tail("antefix_tpot_seconds", by), tpot_objective],
                "s",
                dashed="/^objective/",
            ),
            graph(
                "End to end",
                "From arrival to the last byte, streamed or not. Depends on how long the answers "
                "are: compare it with itself, or with the pool's `e2e_s` (dashed) where it is set.",
                [*median_and_tail("antefix_request_duration_seconds", by), e2e_objective],
                "s",
                dashed="/^objective/",
            ),
            graph(
                "Gaps between tokens",
                "Time between the pieces of a stream as the client gets them: what a "
                "reader sees as stutter.",
                median_and_tail("antefix_inter_token_latency_seconds", "pool"),
                "s",
            ),
            graph(
                "Share within objective",
                "Of the last minutes' requests, how many kept each objective. 1 is good.",
                [(within, "{{objective}} {{pool}}")],
                "percentunit",
                top=1,
            ),
            graph(
                "Goodput",
                "Requests per second that were served within all objectives of their "
                "class, against all that counted. The gap is work without worth.",
                [(_goodput("good"), "good {{pool}}"), (_goodput("good|bad"), "all {{pool}}")],
                "reqps",
            ),
        ],
    )


def _traffic(slo: SloFile) -> Row:
    errors = rate("antefix_errors_total", "kind", 'pool=~"$pool|"')
    rejected = f'{POOL}, outcome="rejected"'
    refused = rate("antefix_requests_total", "pool, priority", rejected)
    firing = f"count by (alertname, severity, pool) (ALERTS{{{_FIRING}}})"
    return Row(
        "Traffic and errors",
        [
            graph(
                "Requests by outcome",
                "ok and cancelled are fine; rejected means no room (429); deadline and "
                "failed cost the availability budget.",
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
                "Share of requests that failed or ran out of time. Limits: slo.yaml.",
                [(portion("antefix_requests_total", "pool", _FAILED), "{{pool}}")],
                "percentunit",
                steps=steps(slo, "AntefixErrorRateHigh"),
            ),
            graph(
                "Errors by kind",
                "Error answers by the code that the client got. Those before a pool was "
                "known (a wrong key, an unknown model) count for every pool.",
                [(or_none(errors, "kind"), "{{kind}}")],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Refused (429)",
                "Requests turned away because they could not have been served in time. "
                "Some at peaks is sound; always some means too few replicas.",
                [(or_none(refused, "pool"), "{{pool}} {{priority}}")],
                "reqps",
            ),
            figures(
                "Alerts firing",
                "Every alert that fires for these pools or for the whole fleet. One row "
                "called none is the wanted state.",
                ["alertname", "severity", "pool"],
                [Column("firing", or_none(firing, "alertname"), "none", _BAD_FROM_ONE)],
                span=8,
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
