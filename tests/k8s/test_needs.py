"""What preflight counts, against what the chart renders to."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.fleet.fleet import Fleet
from k8s.fitting import requests_of
from k8s.needs import PodGroup, amounts, needs_of
from k8s.values import computed_values, merged
from tests.helm.helm import CHART, Object, all_of_kind, of_kind, render

FILES = sorted([*CHART.glob("values/*.yaml"), *CHART.glob("ci/*.yaml")])
SLO = {"interactive": {"ttft_s": 1}}
MODEL = {"model": "org/model"}
ODD: Object = {
    "fleet": {
        "name": "odd",
        "gateway": {"replicas": 3},
        "pools": {
            "deep": {
                **MODEL,
                "replicas": 2,
                "warm_replicas": 1,
                "slo": SLO,
                "engine_args": {"tensor-parallel-size": 4, "pipeline_parallel_size": 2},
            },
            "half": {**MODEL, "served_model_name": "half", "resources": {"gpus": 0.5}},
            "none": {**MODEL, "served_model_name": "none", "resources": {"gpus": 0}},
            "scaled": {
                **MODEL,
                "served_model_name": "scaled",
                "replicas": 4,
                "slo": SLO,
                "autoscaling": {"min_replicas": 0, "max_replicas": 3},
            },
        },
    },
    "engine": {"gpuResource": "amd.com/gpu"},
    "pools": {
        "none": {
            "nodeSelector": {"kind": "cpu"},
            "tolerations": [],
            "resources": {"limits": {"cpu": "3", "memory": "3Gi"}, "requests": {"cpu": "2"}},
        }
    },
    "redis": {"persistence": {"enabled": True}},
    "gcsFaultTolerance": {"enabled": True},
    "warmNodes": {"enabled": True},
}


@pytest.fixture(scope="module", params=[*FILES, ODD], ids=lambda p: getattr(p, "stem", "odd"))
def values(request: pytest.FixtureRequest) -> Object:
    own = request.param
    if isinstance(own, Path):
        return computed_values([own])
    return merged(computed_values([]), own)


@pytest.fixture(scope="module")
def rendered(values: Object) -> list[Object]:
    return render(values)


@pytest.fixture(scope="module")
def groups(values: Object) -> dict[str, PodGroup]:
    fleet = Fleet.model_validate(values["fleet"])
    return {group.name: group for group in needs_of(fleet, values).groups}


def test_pods_are_as_many_and_as_large_as_the_chart_makes_them(
    rendered: list[Object], groups: dict[str, PodGroup]
) -> None:
    cluster = of_kind(rendered, "RayService")["spec"]["rayClusterConfig"]
    options = cluster.get("autoscalerOptions", {})
    made = {
        of["groupName"]: (of["template"]["spec"], of["replicas"])
        for of in cluster["workerGroupSpecs"]
    }
    head = cluster["headGroupSpec"]["template"]["spec"]
    beside = [{"resources": options["resources"]}] if options else []
    made["head"] = ({**head, "containers": [*head["containers"], *beside]}, 1)
    for kind, name in (("StatefulSet", "redis"), ("Deployment", "warm-nodes")):
        for one in all_of_kind(rendered, kind, f"-{name}"):
            made[name] = (one["spec"]["template"]["spec"], one["spec"]["replicas"])

    assert groups.keys() == made.keys()
    for name, (spec, count) in made.items():
        group = groups[name]
        assert group.count == count <= group.most, name
        assert dict(group.requests) == without_nothing(requests_of(spec)), name
        assert dict(group.node_selector) == spec.get("nodeSelector", {}), name
        assert list(group.tolerations) == spec.get("tolerations", []), name


def test_limits_are_those_that_every_container_has(
    rendered: list[Object], groups: dict[str, PodGroup]
) -> None:
    cluster = of_kind(rendered, "RayService")["spec"]["rayClusterConfig"]
    for of in cluster["workerGroupSpecs"]:
        (container,) = of["template"]["spec"]["containers"]
        assert groups[of["groupName"]].limits == amounts(container["resources"].get("limits"))


def without_nothing(requests: dict[str, Decimal]) -> dict[str, Decimal]:
    return {name: amount for name, amount in requests.items() if amount}


def container(cpu: str, **more: Any) -> Object:
    return {"name": "x", "image": "x", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    "inits, cpu",
    [
        ([], 2),
        ([container("1")], 2),
        ([container("5")], 5),
        ([container("1", restartPolicy="Always")], 3),
    ],
    ids=["none", "small", "large", "beside"],
)
def test_a_pod_requests_its_containers_together_or_its_largest_init_container(
    inits: list[Object], cpu: int
) -> None:
    spec = {"containers": [container("1"), container("1")], "initContainers": inits}
    assert requests_of(spec) == {"cpu": cpu, "pods": 1}


def test_a_pods_limit_stands_for_a_request_that_is_not_set() -> None:
    limited = {"name": "x", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}
    assert requests_of({"containers": [limited]}) == {"memory": 2**30, "pods": 1}


def test_later_values_go_over_earlier_ones_and_null_takes_away(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(yaml.safe_dump({"service": {"port": 81}, "image": {"pullSecrets": ["a"]}}))
    second.write_text(yaml.safe_dump({"image": {"pullSecrets": ["b"]}, "head": {"affinity": None}}))
    values = computed_values([first, second])
    assert values["service"] == {**computed_values([])["service"], "port": 81}
    assert values["image"]["pullSecrets"] == ["b"]
    assert "affinity" not in values["head"] and "resources" in values["head"]
