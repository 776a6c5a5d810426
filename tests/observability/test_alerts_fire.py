"""Every alert on made-up series, by promtool: it fires when it should, and is quiet when not."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import yaml

from observability import GENERATED
from observability.rules import alerts
from observability.slo import load
from tests.missing import program

ROOT = Path(__file__).parents[2]
RULES = GENERATED / "rules.yaml"

Series = dict[str, list[float]]
GONE = float("nan")


def constant(value: float, minutes: int = 60) -> list[float]:
    return [value] * (minutes + 1)


def counted(*phases: tuple[float, int]) -> list[float]:
    """A counter, a sample a minute: by how much a minute, for how many minutes."""
    values = [0.0]
    for rate, minutes in phases:
        values += [values[-1] + rate * minute for minute in range(1, minutes + 1)]
    return values


def shown(*phases: tuple[float, int]) -> list[float]:
    """A value for each phase, GONE for none, and how many minutes it is shown."""
    return [value for value, minutes in phases for _ in range(minutes)]


def burning(objective: str, *phases: tuple[float, int]) -> Series:
    """10,000 events a minute, of which a share is bad: (percent, minutes), one after another."""
    labels = f'pool="a", priority="interactive", objective="{objective}"'
    return {
        f'antefix_slo_events_total{{{labels}, result="bad"}}': counted(
            *((100 * percent, minutes) for percent, minutes in phases)
        ),
        f'antefix_slo_events_total{{{labels}, result="good"}}': counted(
            *((10_000 - 100 * percent, minutes) for percent, minutes in phases)
        ),
    }


def first_tokens(after: float, promised: float, objective: str) -> Series:
    """Requests that all have their first token in the bucket below `after` seconds."""
    bounds = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, float("inf")]
    buckets = {
        f'antefix_ttft_seconds_bucket{{pool="a", priority="interactive", le="{bound:g}"}}': counted(
            (60 if bound >= after else 0, 60)
        )
        for bound in bounds
    }
    labels = f'pool="a", priority="interactive", objective="{objective}"'
    return {f"antefix_slo_threshold_seconds{{{labels}}}": constant(promised), **buckets}


def replicas(target: int, **states: int) -> Series:
    return {
        'antefix_target_replicas{pool="a", instance="x"}': constant(target),
        **{
            f'antefix_replicas{{pool="a", state="{state}", instance="{instance}"}}': constant(count)
            for state, count in states.items()
            for instance in "xy"
        },
    }


def gauge(name: str, value: float) -> Series:
    return {f'{name}{{pool="a", replica="r"}}': constant(value)}


def engine_deaths(replica: str, **causes: float) -> Series:
    """As one replica of the pool reports them."""
    labels = f'pool="a", instance="i", replica="{replica}"'
    return {
        f'antefix_engine_recent_deaths{{{labels}, cause="{cause}"}}': constant(count)
        for cause, count in causes.items()
    }


def lookups(ok: float, failed: float) -> Series:
    return {
        'antefix_index_lookups_total{pool="a", result="ok"}': counted((ok, 60)),
        'antefix_index_lookups_total{pool="a", result="failed"}': counted((failed, 60)),
    }


def prefill(learned: float, calibrated: float) -> Series:
    return gauge("antefix_replica_prefill_tokens_per_second", learned) | gauge(
        "antefix_replica_calibrated_prefill_tokens_per_second", calibrated
    )


def generating(tokens_per_s: float, running: float, floor: float | None = 500) -> Series:
    """One replica of a pool that is busy from 50 requests on."""
    whose = 'pool="a", replica="r"'
    series = {
        f"vllm:generation_tokens_total{{{whose}}}": counted((60 * tokens_per_s, 60)),
        f"antefix_replica_running_requests{{{whose}}}": constant(running),
    }
    if floor is None:
        return series
    floors = {"tokens_per_second": floor, "running_requests": 50}
    return series | {
        f'antefix_throughput_floor_{name}{{pool="a", instance="{gateway}"}}': constant(value)
        for name, value in floors.items()
        for gateway in "xy"
    }


def speculation(losing: int, on: int) -> Series:
    return gauge("antefix_speculation_losing", losing) | gauge("antefix_speculation_on", on)


def gpus(*percents: float) -> Series:
    return {
        f'DCGM_FI_DEV_GPU_UTIL{{Hostname="n", gpu="{gpu}"}}': constant(percent)
        for gpu, percent in enumerate(percents)
    }


def gpu_memory(used: float, free: float) -> Series:
    return {
        'DCGM_FI_DEV_FB_USED{Hostname="n", gpu="0"}': constant(used),
        'DCGM_FI_DEV_FB_FREE{Hostname="n", gpu="0"}': constant(free),
    }


def nodes(*up: int) -> Series:
    return {
        f'up{{job="antefix", instance="{node}"}}': constant(value) for node, value in enumerate(up)
    }


def engines(**up: Sequence[float]) -> Series:
    """Pods of engines, as the chart's PodMonitor labels them; a sample a minute."""
    return {
        f'up{{job="antefix", antefix_component="engine", instance="{pod}"}}': list(values)
        for pod, values in up.items()
    }


DAY_SO_FAR = 7 * 60
_HANGS = 'antefix_engine_hangs_total{pool="a", replica="x"}'
_SUSPECT = 'antefix_engine_suspect{pool="a", replica="x"}'
_DEATHS = 'antefix_engine_recent_deaths{{pool="a", instance="i", replica="{}", cause="died"}}'
_FAILURES = 'antefix_loop_failures_total{instance="x", loop="load_board"}'
_FORGED = 'antefix_redis_forged_total{instance="x", kind="settings"}'

# (alert, severity) -> what it fires on, what it is quiet on
CASES: Mapping[tuple[str, str], tuple[list[Series], list[Series]]] = {
    ("AntefixTtftBudgetBurn", "page"): (
        [burning("ttft", (0, 330), (20, 62)), burning("ttft", (8, DAY_SO_FAR))],
        # 20 % for six hours, and good again for 40 minutes: nobody needs to get up any more
        [burning("ttft", (5, DAY_SO_FAR)), burning("ttft", (20, 380), (0, 40))],
    ),
    ("AntefixTtftBudgetBurn", "ticket"): (
        [burning("ttft", (4, DAY_SO_FAR)), burning("ttft", (1.5, DAY_SO_FAR))],
        [burning("ttft", (0.5, DAY_SO_FAR))],
    ),
    ("AntefixTtftMedianBudgetBurn", "ticket"): (
        [burning("ttft_p50", (60, DAY_SO_FAR))],
        [burning("ttft_p50", (40, DAY_SO_FAR))],
    ),
    ("AntefixTpotBudgetBurn", "page"): (
        [burning("tpot", (0, 330), (20, 62)), burning("tpot", (8, DAY_SO_FAR))],
        [burning("tpot", (5, DAY_SO_FAR))],
    ),
    ("AntefixTpotBudgetBurn", "ticket"): (
        [burning("tpot", (4, DAY_SO_FAR)), burning("tpot", (1.5, DAY_SO_FAR))],
        [burning("tpot", (0.5, DAY_SO_FAR))],
    ),
    ("AntefixE2eBudgetBurn", "page"): (
        [burning("e2e", (0, 330), (20, 62)), burning("e2e", (8, DAY_SO_FAR))],
        [burning("e2e", (5, DAY_SO_FAR))],
    ),
    ("AntefixE2eBudgetBurn", "ticket"): (
        [burning("e2e", (4, DAY_SO_FAR)), burning("e2e", (1.5, DAY_SO_FAR))],
        [burning("e2e", (0.5, DAY_SO_FAR))],
    ),
    ("AntefixAvailabilityBudgetBurn", "page"): (
        [burning("availability", (0, 330), (2, 62)), burning("availability", (0.8, DAY_SO_FAR))],
        [burning("availability", (0.5, DAY_SO_FAR))],
    ),
    ("AntefixAvailabilityBudgetBurn", "ticket"): (
        [burning("availability", (0.15, DAY_SO_FAR))],
        [burning("availability", (0.05, DAY_SO_FAR))],
    ),
    ("AntefixGoodputBudgetBurn", "page"): (
        [burning("goodput", (0, 330), (80, 62)), burning("goodput", (35, DAY_SO_FAR))],
        [burning("goodput", (25, DAY_SO_FAR))],
    ),
    ("AntefixGoodputBudgetBurn", "ticket"): (
        [burning("goodput", (6, DAY_SO_FAR))],
        [burning("goodput", (4, DAY_SO_FAR))],
    ),
    ("AntefixTtftP50High", "page"): (
        [first_tokens(after=1.0, promised=0.1, objective="ttft_p50")],
        [
            first_tokens(after=0.25, promised=0.1, objective="ttft_p50"),
            first_tokens(after=5.0, promised=1.0, objective="ttft_p50"),
        ],
    ),
    ("AntefixTtftP99High", "ticket"): (
        [first_tokens(after=5.0, promised=0.5, objective="ttft")],
        [first_tokens(after=1.0, promised=0.5, objective="ttft")],
    ),
    ("AntefixErrorRateHigh", "page"): (
        [burning("availability", (0, 30), (2, 30))],
        [burning("availability", (0.5, 60))],
    ),
    ("AntefixErrorRateHigh", "ticket"): (
        [burning("availability", (0, 30), (0.2, 30))],
        # one bad minute is over before it has been bad for as long as it takes
        [burning("availability", (0.05, 60)), burning("availability", (0, 52), (5, 1), (0, 7))],
    ),
    ("AntefixQueueDeep", "page"): (
        [
            gauge("antefix_queue_requests", 501),
            {f'antefix_queue_requests{{pool="a", instance="{i}"}}': constant(300) for i in "xy"},
        ],
        [gauge("antefix_queue_requests", 400)],
    ),
    ("AntefixQueueDeep", "ticket"): (
        [gauge("antefix_queue_requests", 101)],
        [
            gauge("antefix_queue_requests", 99),
            {'antefix_queue_requests{pool="a"}': constant(0, 57) + [200.0] * 3},
        ],
    ),
    ("AntefixNoActiveReplica", "page"): (
        [replicas(target=2, active=0, starting=2)],
        [replicas(target=2, active=1), replicas(target=0, active=0)],
    ),
    ("AntefixReplicasMissing", "ticket"): (
        [replicas(target=3, active=2, warm=0, asleep=0, starting=1)],
        [replicas(target=3, active=1, warm=1, asleep=1), replicas(target=2, active=2, stopping=1)],
    ),
    ("AntefixOverflowLong", "ticket"): (
        [gauge("antefix_overflow_open", 1)],
        [
            gauge("antefix_overflow_open", 0),
            {'antefix_overflow_open{pool="a"}': constant(0, 39) + [1.0] * 20},
        ],
    ),
    ("AntefixPrefillSlow", "ticket"): ([prefill(1500, 3500)], [prefill(2000, 3500)]),
    ("AntefixThroughputLow", "ticket"): (
        [generating(400, running=60), generating(0, running=50)],
        [
            generating(600, running=60),
            generating(0, running=0),
            generating(400, running=49),
            generating(400, running=60, floor=None),
        ],
    ),
    ("AntefixPredictionPoor", "ticket"): (
        [gauge("antefix_ttft_prediction_error_ratio", 0.6)],
        [gauge("antefix_ttft_prediction_error_ratio", 0.3)],
    ),
    ("AntefixSpeculationLosing", "ticket"): (
        [speculation(losing=1, on=1)],
        [speculation(losing=1, on=0), speculation(losing=0, on=1)],
    ),
    ("AntefixIndexFailing", "ticket"): (
        [lookups(ok=90, failed=10), lookups(ok=0, failed=50)],
        [lookups(ok=99, failed=1), lookups(ok=0, failed=0)],
    ),
    ("AntefixPublisherBehind", "ticket"): (
        [gauge("antefix_publisher_lag_seconds", 8)],
        [gauge("antefix_publisher_lag_seconds", 0.05)],
    ),
    ("AntefixSettingsRefused", "ticket"): (
        [gauge("antefix_settings_refused", 1)],
        [gauge("antefix_settings_refused", 0)],
    ),
    ("AntefixCanaryAborted", "ticket"): (
        [{'antefix_canary_aborted{model="m"}': constant(1)}],
        [{'antefix_canary_aborted{model="m"}': constant(0)}],
    ),
    ("AntefixBudgetsByShare", "ticket"): (
        [gauge("antefix_budgets_by_share", 1)],
        [gauge("antefix_budgets_by_share", 0)],
    ),
    ("AntefixKeysStale", "ticket"): (
        [gauge("antefix_keys_stale", 1)],
        [gauge("antefix_keys_stale", 0)],
    ),
    ("AntefixWrongKeys", "ticket"): (
        [{'antefix_errors_total{pool="", kind="invalid_api_key"}': counted((120, 60))}],
        [
            {'antefix_errors_total{pool="", kind="invalid_api_key"}': counted((30, 60))},
            {'antefix_errors_total{pool="a", kind="over_capacity"}': counted((600, 60))},
        ],
    ),
    ("AntefixEngineHangs", "ticket"): (
        [
            {_HANGS: counted((0, 49), (1, 1), (0, 10))},
            # its first sample is its last word: it hung before it was ever read
            {_HANGS: shown((GONE, 50), (1, 2), (GONE, 9))},
        ],
        [{_HANGS: counted((0, 60))}, {_HANGS: shown((1, 30), (GONE, 31))}],
    ),
    ("AntefixEngineSuspect", "ticket"): (
        [{_SUSPECT: shown((0, 50), (1, 11))}],
        # it goes on within a minute, or its replica ends
        [{_SUSPECT: shown((0, 58), (1, 1), (0, 2))}, {_SUSPECT: shown((1, 30), (GONE, 31))}],
    ),
    ("AntefixEngineDeaths", "ticket"): (
        [
            engine_deaths("x", died=2, killed=1),
            engine_deaths("y", died=2, killed=1),
            # each replica lives for a minute, and starts take longer than that
            {_DEATHS.format("x"): shown((GONE, 52), (3, 1), (GONE, 8))},
        ],
        [
            engine_deaths("x", died=2),
            engine_deaths("y", died=2),
            {_DEATHS.format("x"): shown((3, 30), (GONE, 31))},
            # one replica after another, not at once
            {
                _DEATHS.format("x"): shown((2, 55), (GONE, 6)),
                _DEATHS.format("y"): shown((GONE, 55), (2, 6)),
            },
        ],
    ),
    ("AntefixGrammarsWait", "ticket"): (
        [gauge("antefix_grammar_wait_seconds", 25)],
        [gauge("antefix_grammar_wait_seconds", 15)],
    ),
    ("AntefixLoopFails", "ticket"): (
        [
            {_FAILURES: counted((6, 60))},
            {_FAILURES: shown((0, 53), (3, 8))},
            {_FAILURES: shown((GONE, 52), (3, 9))},
        ],
        [
            {_FAILURES: counted((0.1, 60))},
            {_FAILURES: shown((GONE, 52), (2, 9))},
            # old failures, of a process that could not be read for a while
            {_FAILURES: shown((9, 30), (GONE, 20), (9, 11))},
        ],
    ),
    ("AntefixLeasesForged", "ticket"): (
        [gauge("antefix_leases_forged", 1)],
        [gauge("antefix_leases_forged", 0)],
    ),
    ("AntefixRedisFull", "page"): (
        [gauge("antefix_redis_full", 1)],
        [gauge("antefix_redis_full", 0)],
    ),
    ("AntefixRedisForged", "ticket"): (
        [
            {_FORGED: counted((0, 30), (1, 30))},
            {_FORGED: shown((0, 52), (1, 9))},
            {_FORGED: shown((GONE, 52), (1, 9))},
        ],
        [
            {_FORGED: counted((0, 60))},
            {_FORGED: shown((1, 61))},
            {_FORGED: shown((1, 30), (GONE, 20), (1, 11))},
        ],
    ),
    ("AntefixGpuUtilisation", "ticket"): ([gpus(10, 20), gpus(99, 98)], [gpus(60, 90), gpus(80)]),
    ("AntefixGpuMemory", "page"): ([gpu_memory(78, 2)], [gpu_memory(74, 6)]),
    ("AntefixGpuMemory", "ticket"): ([gpu_memory(74, 6)], [gpu_memory(70, 10)]),
    ("AntefixMetricsDown", "page"): ([nodes(0, 0), nodes(0)], [nodes(1, 0)]),
    ("AntefixMetricsDown", "ticket"): (
        [nodes(1, 0), nodes(1, 1, 0), {**nodes(1), **engines(lost=constant(1, 39) + [0.0] * 20)}],
        # a spare pod, and one whose engine was taken away and which goes when it has idled
        [
            nodes(1, 1, 1),
            nodes(1),
            {**nodes(1), **engines(spare=constant(0))},
            {**nodes(1), **engines(idle=constant(1, 50) + [0.0] * 9)},
        ],
    ),
}


def unit_test(series: Series, checks: Mapping[str, Any], folder: Path) -> None:
    """Has promtool evaluate the rules on `series`, a sample a minute, and make the checks."""
    tests = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "5m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": " ".join(map(_sample, values))}
                    for name, values in series.items()
                ],
                **checks,
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _sample(value: float) -> str:
    return "stale" if isnan(value) else f"{value:g}"


def minutes_of(series: Series) -> str:
    return f"{max(map(len, series.values())) - 1}m"


def firing(alert: str, severity: str) -> str:
    labels = f'alertname="{alert}", severity="{severity}", alertstate="firing"'
    return f"count(ALERTS{{{labels}}})"


@pytest.mark.parametrize(("alert", "severity"), CASES)
def test_an_alert_fires_when_it_should(alert: str, severity: str, tmp_path: Path) -> None:
    for series in CASES[alert, severity][0]:
        fires = {"expr": firing(alert, severity), "eval_time": minutes_of(series)}
        fires_once = fires | {"exp_samples": [{"labels": "{}", "value": 1}]}
        unit_test(series, {"promql_expr_test": [fires_once]}, tmp_path)


@pytest.mark.parametrize(("alert", "severity"), CASES)
def test_an_alert_is_quiet_when_it_should_be(alert: str, severity: str, tmp_path: Path) -> None:
    for series in CASES[alert, severity][1]:
        is_quiet = {"expr": firing(alert, severity), "eval_time": minutes_of(series)}
        unit_test(series, {"promql_expr_test": [is_quiet | {"exp_samples": []}]}, tmp_path)


def is_near(expr: str, value: float, at: str, within: float = 1e-9) -> dict[str, Any]:
    near = f"sum(abs({expr} - {value}) < bool {within})"
    return {"expr": near, "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1}]}


def test_every_alert_has_its_cases() -> None:
    made = {(rule["alert"], rule["labels"]["severity"]) for rule in alerts(load())}
    assert made == CASES.keys()
    assert all(fires and quiet for fires, quiet in CASES.values())


def test_an_alert_says_which_pool_and_how_bad_and_where_to_read_on(tmp_path: Path) -> None:
    expected = {
        "exp_labels": {
            "severity": "page",
            "slo": "ttft",
            "pool": "a",
            "service": "antefix",
            "owner": "serving",
        },
        "exp_annotations": {
            "summary": "a: 20% of first tokens arrived too late",
            "description": "Requests get their first token within the ttft_s of their pool and "
            "class.",
            "runbook_url": "docs/runbooks/AntefixTtftBudgetBurn.md",
            "dashboard": "Fleet SLO",
        },
    }
    ticket = {
        "exp_labels": expected["exp_labels"] | {"severity": "ticket"},
        "exp_annotations": expected["exp_annotations"],
    }
    check = {
        "alertname": "AntefixTtftBudgetBurn",
        "eval_time": "400m",
        "exp_alerts": [expected, ticket],
    }
    unit_test(burning("ttft", (20, 400)), {"alert_rule_test": [check]}, tmp_path)


def test_burn_rates_and_what_is_left_of_the_budget(tmp_path: Path) -> None:
    recorded = {
        "slo:objective:ratio": 0.99,
        "slo:error_budget:ratio": 0.01,
        "slo:sli_error:ratio_rate5m": 0.02,
        "slo:sli_error:ratio_rate30d": 0.02,
        "slo:current_burn_rate:ratio": 2,
        "slo:period_burn_rate:ratio": 2,
        "slo:period_error_budget_remaining:ratio": -1,
    }
    labels = '{slo="ttft", service="antefix", owner="serving", pool="a"}'
    checks = [is_near(f"{name}{labels}", value, "60m") for name, value in recorded.items()]
    unit_test(burning("ttft", (2, 60)), {"promql_expr_test": checks}, tmp_path)


def test_a_busy_hour_weighs_more_in_the_month_than_a_quiet_one(tmp_path: Path) -> None:
    labels = 'pool="a", objective="ttft"'
    series = {
        f'antefix_slo_events_total{{{labels}, result="bad"}}': counted((10, 200), (0, 200)),
        f'antefix_slo_events_total{{{labels}, result="good"}}': counted((90, 200), (9900, 200)),
    }
    # 2,000 of 2,000,000 are bad; the mean of both halves' ratios would be 5 %
    check = is_near('slo:sli_error:ratio_rate30d{slo="ttft"}', 0.001, "400m", 1e-4)
    unit_test(series, {"promql_expr_test": [check]}, tmp_path)


def test_a_pool_that_is_quiet_or_has_failed_nobody_burns_nothing(tmp_path: Path) -> None:
    good = 'antefix_slo_events_total{pool="a", objective="ttft", result="good"}'
    for rate in (0, 10):
        check = {"expr": "sum(slo:current_burn_rate:ratio)", "eval_time": "60m"}
        is_nothing = check | {"exp_samples": [{"labels": "{}", "value": 0}]}
        unit_test({good: counted((rate, 60))}, {"promql_expr_test": [is_nothing]}, tmp_path)
