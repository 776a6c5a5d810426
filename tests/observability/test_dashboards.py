"""The dashboards: that they are what is shipped, ask for what exists, and are never empty."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from observability import GENERATED
from observability.alerts import rules
from observability.alerts.slo_file import Limit, SloFile, load
from observability.dashboards import expressions, render
from observability.metrics.metrics import TierWay, TokenSource
from tests.missing import program
from tests.observability import known_metrics
from tests.observability.known_metrics import Family
from tests.some import some

SHIPPED = GENERATED / "dashboards"
RENDERED = render(load())
DASHBOARDS = {name: json.loads(text) for name, text in RENDERED.items()}
PANELS = [(board, panel) for board in DASHBOARDS.values() for panel in board["panels"]]
VARIABLES = {
    "$pool": ".*",
    "$tenant": ".*",
    "$replica": ".*",
    "$__rate_interval": "1m",
    "$__range": "5m",
}
# What only some fleets have, or only some days. An engine without `speculative_config` has no
# spec_decode metrics, and so on: a panel says so instead of being empty.
OPTIONAL = re.compile(
    r"antefix_(shadow|overflow|forecast|arrivals|demand|warm|tenant_cost|errors|batch|budget_|canary"
    r"|replica_calibrated|replica_prefill_tokens|index_lookup|reuse_loss|speculation|throughput"
    r"|kv_tier|replica_tier)"
    r"|vllm:spec_decode|vllm:kv_offload|DCGM"
)
LABEL_VALUES = {
    "objective": ["ttft", "ttft_p50", "tpot", "e2e", "availability", "goodput"],
    "result": ["good", "bad", "ok"],
    "phase": ["upload", "read", "promotion", "queued", "retry", "engine"],
    "kind": ["prompt", "cached", "output"],
    "source": ["predicted", "confirmed", "host", "external_kv_transfer"],
    "state": ["active", "warm", "asleep", "leaving", "starting", "stopping"],
    "agrees": ["no"],
}


def asked() -> list[tuple[str, str]]:
    """(where, expression) of all dashboards, with the variables filled in."""
    return [
        (f"{board['title']}: {title}", re.sub(r"\$\w+", lambda v: VARIABLES[v[0]], expr))
        for board in DASHBOARDS.values()
        for title, expr in expressions(board)
    ]


def promtool(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [program("promtool"), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def uids(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "uid")
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from uids(item)


def test_the_shipped_dashboards_are_those_of_the_shipped_slo_file() -> None:
    shipped = {path.name: path.read_text() for path in SHIPPED.glob("*.json")}
    assert shipped == RENDERED, "run: make observability"


def test_rendering_gives_the_same_text_each_time() -> None:
    assert render(load()) == RENDERED


def test_there_are_five_dashboards_with_different_titles() -> None:
    titles = [board["title"] for board in DASHBOARDS.values()]
    assert titles == ["Fleet SLO", "Routing", "Capacity", "Engine", "Tenants"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_contains_only_the_uid_of_the_chosen_data_source(name: str) -> None:
    assert set(uids(DASHBOARDS[name])) == {"${datasource}"}
    assert "id" not in DASHBOARDS[name]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_selectors_for_data_source_and_pool_and_links_to_the_others(
    name: str,
) -> None:
    board = DASHBOARDS[name]
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["pool"]["multi"] and variables["pool"]["includeAll"]
    (link,) = board["links"]
    assert link["tags"] == board["tags"] == ["antefix"]
    assert link["keepTime"] and link["includeVars"]


def test_a_runbook_base_that_is_an_address_is_a_link() -> None:
    slo = load().model_copy(update={"runbook_base": "https://wiki.example.com/runbooks"})
    for text in some(render(slo).values()):
        links = json.loads(text)["links"]
        assert "https://wiki.example.com/runbooks" in [link.get("url") for link in links]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_first_panel_of_a_dashboard_describes_it(name: str) -> None:
    panel = DASHBOARDS[name]["panels"][0]
    assert panel["title"] == "About this dashboard"
    for word in ("Good:", "Next:", "runbook"):
        assert word in panel["options"]["content"]


def test_every_panel_has_a_description_a_unit_and_a_threshold() -> None:
    for _, panel in PANELS:
        if panel["type"] == "row":
            continue
        assert panel["title"] and len(panel["description"]) > 20
        if panel["type"] == "text":
            continue
        fields = panel["fieldConfig"]
        assert fields["defaults"]["thresholds"]["steps"]
        units = [p for o in fields["overrides"] for p in o["properties"] if p["id"] == "unit"]
        assert "unit" in fields["defaults"] or len(units) == len(panel["targets"])


def test_every_series_of_a_graph_has_a_name() -> None:
    graphs = [panel for _, panel in PANELS if panel["type"] in ("timeseries", "bargauge")]
    targets = [(panel["title"], target) for panel in some(graphs) for target in panel["targets"]]
    assert not {title for title, target in targets if not target["legendFormat"]}


def test_panels_do_not_overlap_and_have_unique_ids() -> None:
    for board in DASHBOARDS.values():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = set(
                product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
            )
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)


def steps_of(slo: SloFile, title: str) -> list[float | None]:
    """Where the colours of the capacity panel with that title change."""
    board = json.loads(render(slo)["capacity.json"])
    (panel,) = [panel for panel in board["panels"] if panel["title"] == title]
    return [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]


@pytest.mark.parametrize(
    ("title", "steps"),
    [
        ("Queue depth", [None, 100, 500]),
        ("GPU utilization", [None, 5, 70, 90, 99]),
    ],
)
def test_a_panel_changes_its_color_at_the_alert_threshold_of_the_slo_file(
    title: str, steps: list[float | None]
) -> None:
    assert steps_of(load(), title) == steps


def test_custom_alert_thresholds_set_the_colors_of_dashboards() -> None:
    slo = load()
    (queue,) = [level for level in slo.levels if level.name == "AntefixQueueDeep"]
    higher = queue.model_copy(update={"page": Limit.model_validate({"above": 900.0, "for": "5m"})})
    changed = slo.model_copy(update={"levels": [higher]})
    assert steps_of(changed, "Queue depth") == [None, 100, 900]
    assert steps_of(changed, "GPU utilization") == [None]


def test_every_metric_that_a_dashboard_queries_exists() -> None:
    known = known_metrics.all_series()
    named = re.compile(r"(?<![\w:])(?:antefix_|vllm:|slo:|pool\w*:|DCGM_|ALERTS)[\w:]*")
    wrong = {
        f"{where}: {metric}"
        for where, expr in asked()
        for metric in named.findall(expr)
        if metric not in known
    }
    assert not wrong


def test_every_queried_metric_has_a_known_prefix() -> None:
    """So that the test above has seen them all."""
    for where, expr in some(asked()):
        for metric in re.findall(r"([\w:]+)\{", expr):
            assert re.match(r"antefix_|vllm:|slo:|DCGM_|ALERTS", metric), f"{where}: {metric}"


def test_only_gpu_panels_need_a_gpu() -> None:
    titles = {where for where, expr in asked() if "DCGM_" in expr}
    assert titles and all(title.startswith("Capacity: GPU ") for title in titles)


def series(families: list[Family]) -> list[dict[str, str]]:
    """Input for promtool: all of them growing, for every label the values that matter."""
    found = []
    for family in families:
        labels = {
            name: LABEL_VALUES.get(name, ["main" if name == "pool" else "x"])
            for name in family.labels
        }
        for name in family.series:
            with_le = labels | ({"le": ["0.1", "1", "+Inf"]} if name.endswith("_bucket") else {})
            for values in product(*with_le.values()):
                matchers = ", ".join(f'{k}="{v}"' for k, v in zip(with_le, values, strict=True))
                course = "0.5x60" if family.kind == "gauge" else "0+3x60"
                found.append({"series": f"{name}{{{matchers}}}", "values": course})
    return found


@pytest.mark.parametrize("fleet", ["with everything", "without what is optional"])
def test_no_panel_is_empty_on_a_fleet(fleet: str, tmp_path: Path) -> None:
    families = [
        *known_metrics.antefix_families(),
        *known_metrics.of_vllm(),
        *known_metrics.of_gpus(),
    ]
    expected = asked()
    if fleet == "without what is optional":
        families = [family for family in families if not OPTIONAL.match(family.name)]
        expected = [(where, expr) for where, expr in expected if "DCGM_" not in expr]
    (tmp_path / "rules.yaml").write_text(rules.render(load()))
    # NaN is no data either, and the only value that is not equal to itself.
    checks = [
        {
            "expr": f"clamp_max(count(({expr}) == ({expr})), 1)",
            "eval_time": "14m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for _, expr in expected
    ]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "30s",
        "tests": [
            {"interval": "15s", "input_series": series(families), "promql_expr_test": checks}
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", "test.yaml", folder=tmp_path)


def test_prometheus_parses_every_expression(tmp_path: Path) -> None:
    recorded = [
        {"record": f"dashboard:expression:{number}", "expr": expr}
        for number, (_, expr) in enumerate(asked())
    ]
    groups = {"groups": [{"name": "dashboards", "rules": recorded}]}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump(groups))
    said = promtool("check", "rules", "all.yaml", folder=tmp_path)
    assert f"SUCCESS: {len(recorded)} rules found" in said


def test_a_panel_explains_each_way_to_a_prefix_and_each_source_of_tokens() -> None:
    said = {panel["title"]: panel.get("description", "") for _, panel in PANELS}
    for title, names in (
        ("Requests by way", get_args(TierWay)),
        ("Prompt tokens by source", [of for of in get_args(TokenSource) if of != "computed"]),
    ):
        assert not [name for name in names if f"{name}: " not in said[title]]
