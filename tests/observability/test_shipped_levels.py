"""Alerts on the levels of the files that ship: a sound fleet is quiet, and a fault is reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deployments.fleet.test_shipped_gpus import OUTPUT, PROMPT, SHIPPED, Shipped
from tests.observability.steady_fleet import steady_nodes, steady_pool
from tests.observability.test_alerts_fire import RULES, firing, minutes_of, unit_test
from weights.plan.roofline import OfferedLoad

# A replica's requests. On PCIe cards, the 70B meets its SLO with fewer, and needs more replicas.
RUNNING = {"": 32, "a100-40g": 32, "a100-pcie": 16}
FLEETS = {
    f"{size} {kind}".strip(): tuple(pools)
    for (size, kind), pools in groupby(SHIPPED, key=lambda of: (of.size, of.kind))
}
# What is played in each pool, and the alert that reports it.
FAULTS: Mapping[tuple[str, str], Mapping[str, float]] = {
    # a GPU that is throttled
    ("AntefixThroughputLow", "ticket"): {"generated": 0.2},
    ("AntefixTtftP50High", "page"): {"ttft": 60},
    ("AntefixTtftP99High", "ticket"): {"ttft": 60},
    ("AntefixTtftBudgetBurn", "page"): {"ttft": 60},
    ("AntefixTtftMedianBudgetBurn", "ticket"): {"ttft": 60},
    # answers that repeat themselves up to the model's context
    ("AntefixE2eBudgetBurn", "page"): {"answers": 60},
    ("AntefixGoodputBudgetBurn", "page"): {"answers": 60},
}
each_fleet = pytest.mark.parametrize("pools", FLEETS.values(), ids=FLEETS)


def series_of(pools: tuple[Shipped, ...], **fault: float) -> dict[str, list[float]]:
    series = steady_nodes(share=0.9)
    for of in pools:
        load = OfferedLoad(RUNNING[of.kind], PROMPT, OUTPUT, long_prompt=7200, replicas=2)
        series |= steady_pool(of.pool.served_model_name, of.pool, of.engine, load, **fault)
    return series


@each_fleet
def test_a_shipped_fleet_that_answers_its_load_as_planned_fires_nothing(
    pools: tuple[Shipped, ...], tmp_path: Path
) -> None:
    series = series_of(pools)
    quiet = {"expr": 'ALERTS{alertstate="firing"}', "eval_time": minutes_of(series)}
    unit_test(series, {"promql_expr_test": [quiet | {"exp_samples": []}]}, tmp_path)


@pytest.mark.parametrize(("alert", "severity"), FAULTS)
def test_a_fault_of_a_shipped_fleet_is_reported(alert: str, severity: str, tmp_path: Path) -> None:
    pools = FLEETS["multi-node"]
    series = series_of(pools, **FAULTS[alert, severity])
    samples = [{"labels": "{}", "value": len(pools)}]
    fires = {"expr": firing(alert, severity), "eval_time": minutes_of(series)}
    unit_test(series, {"promql_expr_test": [fires | {"exp_samples": samples}]}, tmp_path)


def test_a_steady_fleet_has_data_for_every_alert() -> None:
    rules: list[dict[str, Any]] = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    text = " ".join(re.sub(r"\{[^}]*\}", "", rule["expr"]) for rule in rules)
    used = set(re.findall(r"(?<![\w:])(?:antefix_\w+|vllm:\w+|DCGM_\w+)", text))
    given = {name.partition("{")[0] for name in series_of(FLEETS["multi-node"])}
    assert used and used <= given
