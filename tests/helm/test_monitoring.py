"""What Prometheus and Grafana are given: the very files that `antefix slo render` writes."""

import json
import re
from typing import Any

import pytest
import yaml

from observability import GENERATED
from observability.alerts.promtool import complaints
from tests.helm.fleets import SMALL, values
from tests.helm.helm import HelmError, Object, all_of_kind, of_kind, render
from tests.helm.policies import selects
from tests.helm.ray_service import fleet
from tests.missing import program

ON = {"enabled": True}
OWN_RELABELINGS = {
    "relabelings": [{"targetLabel": "cluster", "replacement": "eu-1"}],
    "metricRelabelings": [{"sourceLabels": ["__name__"], "regex": "python_.*", "action": "drop"}],
}


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    labels = {"release": "kube-prometheus-stack"}
    metrics: dict[str, Any] = {
        "podMonitor": {**ON, "interval": "5s", "labels": labels, **OWN_RELABELINGS},
        "prometheusRule": {**ON, "labels": labels},
        "dashboards": {**ON, "annotations": {"grafana_folder": "Antefix"}},
        "prometheusNamespace": "monitoring",
    }
    return render(values(pools={"a": SMALL, "b": SMALL}, metrics=metrics))


def test_no_monitoring_object_is_rendered_by_default() -> None:
    objects = render(values())
    assert not all_of_kind(objects, "PodMonitor") + all_of_kind(objects, "PrometheusRule")
    assert not all_of_kind(objects, "ConfigMap", "dashboard")


def test_the_page_links_to_grafana_and_to_the_fleets_own_links() -> None:
    own = {"Runbooks": "https://wiki.acme.internal/runbooks"}
    dashboards = {"grafanaUrl": "https://grafana.acme.internal/"}
    objects = render(values(fleet={"gateway": {"links": own}}, metrics={"dashboards": dashboards}))
    links = fleet(of_kind(objects, "RayService"))["gateway"]["links"]
    grafana = "https://grafana.acme.internal/dashboards?tag=antefix"
    assert links == {**own, "Grafana": grafana}


def test_the_rules_pass_through_helm_unchanged(objects: list[Object]) -> None:
    rule = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((GENERATED / "rules.yaml").read_text())
    assert "{{ $labels.pool }}" in json.dumps(rule["spec"])


def rules_with(**levels: Any) -> dict[tuple[str, str], Object]:
    """The alerts by name and severity, with the operator's own levels."""
    rendered = render(values(metrics={"prometheusRule": {**ON, "levels": levels}}))
    rules = of_kind(rendered, "PrometheusRule")["spec"]["groups"]
    alerts = [rule for group in rules for rule in group["rules"] if "alert" in rule]
    return {(rule["alert"], rule["labels"]["severity"]): rule for rule in alerts}


def test_a_value_sets_the_level_of_an_alert() -> None:
    shipped = rules_with()
    own = rules_with(
        AntefixGpuUtilization={"ticket": {"below": 20, "above": 99.5}},
        AntefixQueueDeep={"ticket": {"above": 2000000, "for": "10m"}},
        AntefixKvTierUnused={"ticket": {"above": 50}},
    )
    changed = {key: own[key] for key in shipped if own[key] != shipped[key]}
    assert {alert for alert, _ in changed} == {
        "AntefixGpuUtilization",
        "AntefixQueueDeep",
        "AntefixKvTierUnused",
    }
    query = "(avg by (Hostname) (avg_over_time(DCGM_FI_DEV_GPU_UTIL[1d])))"
    gpus = changed["AntefixGpuUtilization", "ticket"]
    assert gpus["expr"] == f"{query} > 99.5\nor {query} < 20"
    queue = changed["AntefixQueueDeep", "ticket"]
    assert (queue["expr"], queue["for"]) == (
        "(sum by (pool) (antefix_queue_requests)) > 2e+06",
        "10m",
    )
    # the comparison within its query stays
    tier = changed["AntefixKvTierUnused", "ticket"]["expr"]
    assert tier.endswith('(increase(antefix_kv_tier_offers_total{taken="yes"}[1h])) > 0) > 50')


def test_a_value_disables_an_alert_of_one_severity() -> None:
    off = {"page": {"disable": True}}
    own = rules_with(AntefixQueueDeep=off, AntefixTtftBudgetBurn=off)
    assert rules_with().keys() - own.keys() == {
        ("AntefixQueueDeep", "page"),
        ("AntefixTtftBudgetBurn", "page"),
    }


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (
            {"AntefixQueueDeep": {"ticket": {"below": 3}}},
            "levels.AntefixQueueDeep.ticket.below: this alert has no such level: leave it out",
        ),
        (
            {"AntefixTtftBudgetBurn": {"page": {"above": 3}}},
            "levels.AntefixTtftBudgetBurn.page.above: this alert has no such level: leave it out",
        ),
        (
            {"AntefixQueueDepth": {"page": {"above": 3}}},
            "levels.AntefixQueueDepth.page: there is no such alert: docs/runbooks/README.md lists",
        ),
    ],
)
def test_a_level_that_no_alert_has_is_refused(levels: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmError, match=re.escape(said)):
        rules_with(**levels)


def test_prometheus_accepts_the_rules(objects: list[Object]) -> None:
    program("promtool")
    assert complaints(yaml.safe_dump(of_kind(objects, "PrometheusRule")["spec"])) == ""


def test_only_gateways_and_engines_are_scraped(objects: list[Object]) -> None:
    selector = of_kind(objects, "PodMonitor")["spec"]["selector"]
    cluster = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    templates = {"head": cluster["headGroupSpec"]["template"]} | {
        name: group["template"] for name, group in groups.items()
    }
    templates["redis"] = of_kind(objects, "StatefulSet")["spec"]["template"]
    scraped = [n for n, t in templates.items() if selects(selector, t["metadata"]["labels"])]
    assert scraped == ["gateway", "a", "b"]
    (endpoint,) = of_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    for name in scraped:
        ports = templates[name]["spec"]["containers"][0]["ports"]
        assert endpoint["port"] in [port["name"] for port in ports]


def test_scrapes_have_the_job_label_that_the_rules_select(objects: list[Object]) -> None:
    (endpoint,) = of_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    (relabeling,) = [r for r in endpoint["relabelings"] if r.get("targetLabel") == "job"]
    asked = set(re.findall(r'job="([^"]+)"', (GENERATED / "rules.yaml").read_text()))
    assert {relabeling["replacement"]} == asked


def test_a_pod_that_is_not_running_is_not_scraped(objects: list[Object]) -> None:
    """One whose init container downloads has an address. AntefixMetricsDown knows the label."""
    (endpoint,) = of_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    rules = {r["sourceLabels"][0]: r for r in endpoint["relabelings"] if "sourceLabels" in r}
    phase = rules["__meta_kubernetes_pod_phase"]
    assert (phase["regex"], phase["action"]) == ("Running", "keep")
    label = rules["__meta_kubernetes_pod_label_antefix_component"]["targetLabel"]
    assert f'{label}="engine"' in (GENERATED / "rules.yaml").read_text()


def test_prometheus_chooses_the_timeout_of_a_scrape_unless_it_is_set(
    objects: list[Object],
) -> None:
    """Its own is never longer than the interval."""
    (endpoint,) = of_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "5s" and "scrapeTimeout" not in endpoint
    monitor = {**ON, "scrapeTimeout": "3s"}
    metrics = {"podMonitor": monitor, "prometheusNamespace": "monitoring"}
    only = render(values(metrics=metrics), show_only="templates/podmonitor.yaml")
    assert only[0]["spec"]["podMetricsEndpoints"][0]["scrapeTimeout"] == "3s"


def test_relabelings_of_the_values_follow_the_charts(objects: list[Object]) -> None:
    (endpoint,) = of_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][-1:] == OWN_RELABELINGS["relabelings"]
    assert endpoint["metricRelabelings"] == OWN_RELABELINGS["metricRelabelings"]


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule"])
def test_monitoring_objects_have_the_labels_that_prometheus_selects(
    kind: str, objects: list[Object]
) -> None:
    labels = of_kind(objects, kind)["metadata"]["labels"]
    assert labels["release"] == "kube-prometheus-stack"
    assert labels["app.kubernetes.io/name"] == "antefix"


def test_each_dashboard_is_a_config_map_for_grafanas_sidecar(objects: list[Object]) -> None:
    maps = all_of_kind(objects, "ConfigMap", "dashboard")
    shown = {}
    for config_map in maps:
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config_map["metadata"]["annotations"] == {"grafana_folder": "Antefix"}
        ((name, text),) = config_map["data"].items()
        shown[name.removeprefix("afx-antefix-")] = text
    files = (GENERATED / "dashboards").glob("*.json")
    assert shown == {file.name: file.read_text() for file in files}
