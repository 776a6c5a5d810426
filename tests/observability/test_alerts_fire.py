"""Every alert on made-up series, by promtool: it fires when it should, and is quiet when not."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.fleet.devices import gpu_memory_share
from observability import GENERATED
from observability.alerts.rules import alerts
from observability.alerts.slo_file import load
from tests.missing import program
from tests.observability.alert_cases import CASES
from tests.observability.alert_series import Series, burning, counted, gpu_memory, gpus
from tests.shipped import (
    FLEET_FILES,
    INSTALLS,
    PLANNED_FILES,
    RECIPES,
    VALUES_FILES,
    combined,
    fleet_in,
    parsed_fleet,
)
from tests.some import some

ROOT = Path(__file__).parents[2]
RULES = GENERATED / "rules.yaml"


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


def shares_of_shipped_fleets() -> set[float]:
    """The distinct shares of a GPU's memory that engines of shipped fleets allocate."""
    fleets = [fleet_in(file) for file in (*FLEET_FILES, *RECIPES, *VALUES_FILES, *PLANNED_FILES)]
    fleets += [parsed_fleet(combined(files)["fleet"]) for files in INSTALLS.values()]
    shares = {gpu_memory_share(pool) for fleet in fleets for pool in fleet.pools.values()}
    return {share for share in shares if share is not None}


def test_a_shipped_fleet_alerts_only_if_gpu_memory_is_well_above_the_share_of_its_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(share: float, full: float, expr: str, alerts_firing: int) -> None:
        series = gpu_memory(80 * full, 80 * (1 - full), share) | gpus(80, minutes=60)
        samples = [{"labels": "{}", "value": alerts_firing}] * bool(alerts_firing)
        checked = {"expr": expr, "eval_time": minutes_of(series), "exp_samples": samples}
        unit_test(series, {"promql_expr_test": [checked]}, tmp_path)

    monkeypatch.setenv("HF_TOKEN", "hf_token")
    for share in some(shares_of_shipped_fleets()):
        for points in (-2, 0, 2, 4):
            check(share, share + points / 100, 'count(ALERTS{alertstate="firing"})', 0)
        for severity, of_the_rest in (("ticket", 0.7), ("page", 0.9)):
            full = share + of_the_rest * (1 - share)
            check(share, full, firing("AntefixGpuMemory", severity), 1)


def is_near(expr: str, value: float, at: str, within: float = 1e-9) -> dict[str, Any]:
    near = f"sum(abs({expr} - {value}) < bool {within})"
    return {"expr": near, "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1}]}


def test_every_alert_has_its_cases() -> None:
    made = {(rule["alert"], rule["labels"]["severity"]) for rule in alerts(load())}
    assert made == CASES.keys()
    assert all(fires and quiet for fires, quiet in CASES.values())


def test_an_alert_names_the_pool_the_value_and_the_runbook(tmp_path: Path) -> None:
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
            "description": "Too many requests miss the time-to-first-token objective of their pool "
            "and class.",
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


def test_burn_rates_and_the_remaining_error_budget_are_recorded(tmp_path: Path) -> None:
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


def test_a_busy_hour_uses_more_of_the_monthly_error_budget_than_a_quiet_one(tmp_path: Path) -> None:
    labels = 'pool="a", objective="ttft"'
    series = {
        f'antefix_slo_events_total{{{labels}, result="bad"}}': counted((10, 200), (0, 200)),
        f'antefix_slo_events_total{{{labels}, result="good"}}': counted((90, 200), (9900, 200)),
    }
    # 2,000 of 2,000,000 are bad; the mean of both halves' ratios would be 5 %
    check = is_near('slo:sli_error:ratio_rate30d{slo="ttft"}', 0.001, "400m", 1e-4)
    unit_test(series, {"promql_expr_test": [check]}, tmp_path)


def test_a_pool_without_traffic_or_failures_burns_nothing(tmp_path: Path) -> None:
    good = 'antefix_slo_events_total{pool="a", objective="ttft", result="good"}'
    for rate in (0, 10):
        check = {"expr": "sum(slo:current_burn_rate:ratio)", "eval_time": "60m"}
        is_nothing = check | {"exp_samples": [{"labels": "{}", "value": 0}]}
        unit_test({good: counted((rate, 60))}, {"promql_expr_test": [is_nothing]}, tmp_path)
