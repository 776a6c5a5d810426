"""A Prometheus in the cluster that scrapes as Prometheus Operator would have it for a PodMonitor.

How the Operator makes a configuration of it: generatePodMonitorConfig in pkg/prometheus/promcfg.go
of github.com/prometheus-operator/prometheus-operator, v0.85. Its program is this machine's, copied
into a pod, so that the network policies hold for it.
"""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.helm.helm import Object, all_of_kind
from tests.kubernetes.api import until
from tests.kubernetes_long.kubectl import apply, kubectl
from tests.kubernetes_long.visitors import NAMESPACE, visitor, within
from tests.missing import program
from tests.prometheus import Prometheus

POD = "prometheus"
READS = "antefix-tests-prometheus"
# Written anew for each watch, so that none sees what was before.
FOLDER = "/tmp/watch"
FOUND, PIDS = f"{FOLDER}/found.json", f"{FOLDER}/pids"
DISCOVERY = Path(__file__).with_name("discovery.py").read_text()
ASKING = (
    "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=60).read().decode())"
)


class Watch(Prometheus):
    """Asked from inside its own pod."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9090")
        self.began = time.time()

    def get(self, path: str) -> Any:
        url = f"http://127.0.0.1:9090/api/v1/{path}"
        return json.loads(within(POD, "python", "-c", ASKING, url))["data"]

    def seen(self, expression: str) -> list[Object]:
        """Series of a range query from the beginning until now, each with `metric` and `values`."""
        asked = {"query": expression, "start": self.began, "end": time.time(), "step": 5}
        found: list[Object] = self.get(f"query_range?{urllib.parse.urlencode(asked)}")["result"]
        return found

    def fired(self) -> set[str]:
        """Alerts that an operator would have received."""
        return {one["metric"]["alertname"] for one in self.seen('ALERTS{alertstate="firing"}')}


@contextmanager
def watch(objects: list[Object], namespace: str, image: str) -> Iterator[Watch]:
    """Run a Prometheus with the chart's PodMonitor and PrometheusRule, which `objects` contain."""
    (monitor,) = all_of_kind(objects, "PodMonitor")
    (rule,) = all_of_kind(objects, "PrometheusRule")
    _pod(image)
    configuration = {
        "global": {"evaluation_interval": "5s"},
        "rule_files": [f"{FOLDER}/rules.yaml"],
        "scrape_configs": scrape_configs(monitor, namespace),
    }
    within(POD, "bash", "-c", f"rm -rf {FOLDER} && mkdir {FOLDER}")
    for name, content in {"prometheus": configuration, "rules": rule["spec"]}.items():
        text = yaml.safe_dump(content)
        within(POD, "bash", "-c", f"cat > {FOLDER}/{name}.yaml", stdin=text)
    options = f"--config.file={FOLDER}/prometheus.yaml --storage.tsdb.path={FOLDER}/data"
    run = f"/tmp/prometheus {options} --web.listen-address=127.0.0.1:9090"
    discovery = ("bash", "-c", f'python -c "$0" "$@" > {FOLDER}/found.log 2>&1 & echo $! > {PIDS}')
    within(POD, *discovery, DISCOVERY, namespace, FOUND)
    within(POD, "bash", "-c", f"{run} > {FOLDER}/log 2>&1 & echo $! >> {PIDS}")
    watching = Watch()
    try:
        until("Prometheus answers", lambda: watching.get("status/runtimeinfo"), within_s=120)
        yield watching
    finally:
        within(POD, "bash", "-c", f"kill $(cat {PIDS})")


def _pod(image: str) -> None:
    may = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    api, role = "rbac.authorization.k8s.io", {"name": READS}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}
    of_role = {"apiGroup": api, "kind": "ClusterRole", **role}
    apply(
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": role, "rules": [may]},
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": role,
            "subjects": [account],
            "roleRef": of_role,
        },
    )
    visitor(POD, image, ["sleep", "infinity"])
    kubectl("cp", program("prometheus"), f"{NAMESPACE}/{POD}:/tmp/prometheus")


def scrape_configs(monitor: Object, namespace: str) -> list[Object]:
    """What Prometheus Operator makes of a PodMonitor, of the fields that the chart sets."""
    spec = monitor["spec"]
    selected = spec["selector"]
    chosen: list[Object] = [
        _keep(key, [value]) for key, value in selected.get("matchLabels", {}).items()
    ]
    for expression in selected.get("matchExpressions", ()):
        assert expression["operator"] == "In", expression
        chosen.append(_keep(expression["key"], expression["values"]))
    made = []
    for number, endpoint in enumerate(spec["podMetricsEndpoints"]):
        known = {"port", "path", "interval", "scrapeTimeout", "relabelings"}
        assert set(endpoint) <= known, endpoint
        name = f"{namespace}/{monitor['metadata']['name']}"
        rules: list[Object] = [
            _rule(["__meta_kubernetes_pod_phase"], action="drop", regex="(Failed|Succeeded)"),
            *chosen,
            _rule(
                ["__meta_kubernetes_pod_container_port_name"], action="keep", regex=endpoint["port"]
            ),
            _rule(["__meta_kubernetes_namespace"], target_label="namespace"),
            _rule(["__meta_kubernetes_pod_container_name"], target_label="container"),
            _rule(["__meta_kubernetes_pod_name"], target_label="pod"),
            {"target_label": "job", "replacement": name},
            {"target_label": "endpoint", "replacement": endpoint["port"]},
            *(_snake_case(rule) for rule in endpoint.get("relabelings", ())),
        ]
        limit = {"scrape_timeout": endpoint["scrapeTimeout"]} if "scrapeTimeout" in endpoint else {}
        made.append(
            {
                "job_name": f"podMonitor/{name}/{number}",
                "metrics_path": endpoint["path"],
                "scrape_interval": endpoint["interval"],
                **limit,
                "file_sd_configs": [{"files": [FOUND]}],
                "relabel_configs": rules,
            }
        )
    return made


def _keep(label: str, values: list[str]) -> Object:
    name = re.sub(r"\W", "_", label)
    sources = [f"__meta_kubernetes_pod_label{kind}_{name}" for kind in ("", "present")]
    return _rule(sources, action="keep", regex=f"({'|'.join(values)});true")


def _rule(sources: list[str], **more: str) -> Object:
    return {"source_labels": sources, **more}


def _snake_case(rule: Object) -> Object:
    return {
        re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", key): value for key, value in rule.items()
    }
