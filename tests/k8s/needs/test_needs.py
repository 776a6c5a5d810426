"""What preflight reads from what Helm makes of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.fleet.fleet import Fleet
from k8s.chart.values import computed_values
from k8s.needs.needs import ClusterNeeds, amounts, needs_of, requests_of
from tests.helm.helm import Object, defaults, merged, put_on_path, render

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
                "replicas": 2,
                "slo": SLO,
                "autoscaling": {"min_replicas": 3, "max_replicas": 5},
            },
        },
    },
    "enginePods": {
        "gpuResource": "amd.com/gpu",
        "runtimeClassName": "nvidia",
        "envFrom": [
            {"secretRef": {"name": "store"}},
            {"secretRef": {"name": "maybe", "optional": True}},
        ],
    },
    "gatewayPods": {"envFrom": [{"configMapRef": {"name": "proxy"}}]},
    "poolPods": {
        "none": {
            "nodeSelector": {"kind": "cpu"},
            "tolerations": [],
            "envFrom": [{"secretRef": {"name": "own"}}],
            "resources": {"limits": {"cpu": "3", "memory": "3Gi"}, "requests": {"cpu": "2"}},
        }
    },
    "redis": {"persistence": {"enabled": True}},
    "gcsFaultTolerance": {"enabled": True},
    "warmNodes": {"enabled": True},
}


@pytest.fixture(scope="module")
def unusual_needs() -> ClusterNeeds:
    values = merged(defaults(), ODD)
    return needs_of(render(ODD), Fleet.model_validate(ODD["fleet"]), values)


def test_groups_have_the_current_and_the_greatest_number_of_pods(
    unusual_needs: ClusterNeeds,
) -> None:
    assert {group.name: (group.count, group.most) for group in unusual_needs.groups} == {
        "head": (1, 1),
        "gateway": (3, 3),
        # of two stages
        "deep": (6, 6),
        "half": (1, 1),
        "none": (1, 1),
        "scaled": (3, 5),
        "redis": (1, 1),
        "warm-nodes": (1, 1),
    }


def test_without_an_autoscaler_all_pods_start_at_once() -> None:
    fixed = merged(ODD, {"rayAutoscaler": {"enabled": False}})
    values = merged(defaults(), fixed)
    groups = needs_of(render(fixed), Fleet.model_validate(ODD["fleet"]), values).groups
    assert {(g.count, g.most) for g in groups if g.name == "scaled"} == {(5, 5)}


def test_pods_have_the_resources_of_the_values(unusual_needs: ClusterNeeds) -> None:
    groups = {group.name: group for group in unusual_needs.groups}
    assert {name: (of.gpu_resource, of.gpus) for name, of in groups.items() if of.gpu_resource} == {
        "deep": ("amd.com/gpu", 4),
        "half": ("amd.com/gpu", 1),
        "none": ("amd.com/gpu", 0),
        "scaled": ("amd.com/gpu", 1),
    }
    deep = amounts({"cpu": "8", "memory": "64Gi", "amd.com/gpu": "4", "pods": "1"})
    assert groups["deep"].requests == deep
    assert groups["deep"].limits == amounts({"memory": "64Gi", "amd.com/gpu": "4"})
    assert groups["none"].requests == amounts({"cpu": "2", "memory": "3Gi", "pods": "1"})
    assert groups["none"].limits == amounts({"cpu": "3", "memory": "3Gi"})
    # with the autoscaler next to it
    head = amounts({"cpu": "1200m", "memory": "4608Mi", "pods": "1"})
    assert groups["head"].requests == head
    assert groups["head"].limits == amounts({"memory": "5Gi"})


def test_pods_have_the_node_selectors_and_tolerations_of_the_values(
    unusual_needs: ClusterNeeds,
) -> None:
    groups = {group.name: group for group in unusual_needs.groups}
    assert groups["none"].node_selector == {"kind": "cpu"} and groups["none"].tolerations == ()
    assert [of["key"] for of in groups["deep"].tolerations] == ["nvidia.com/gpu"]
    assert groups["none"].settings == "poolPods.none"
    assert groups["deep"].settings == "enginePods"
    assert (groups["head"].settings, groups["gateway"].settings) == ("rayHead", "gatewayPods")
    assert groups["warm-nodes"].settings == "warmNodes"
    assert [group.name for group in unusual_needs.groups if not group.in_ray] == [
        "warm-nodes",
        "redis",
    ]


def test_references_of_pods_are_named_by_their_key(unusual_needs: ClusterNeeds) -> None:
    assert [(of.plural, of.name, of.value) for of in unusual_needs.references] == [
        ("configmaps", "proxy", "gatewayPods.envFrom"),
        # `none` has no GPU, so its pods have no such class
        ("runtimeclasses", "nvidia", "enginePods.runtimeClassName"),
        ("secrets", "store", "enginePods.envFrom"),
        ("secrets", "own", "poolPods.none.envFrom"),
    ]


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


def test_a_missing_resource_request_defaults_to_the_limit() -> None:
    limited = {"name": "x", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}
    assert requests_of({"containers": [limited]}) == {"memory": 2**30, "pods": 1}


def test_values_are_those_of_helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(monkeypatch)
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    pools = {"a": {**MODEL, "revision": "1"}, "b": MODEL}
    port = {"service": {"port": 81}, "imagePullSecrets": [{"name": "a"}]}
    first.write_text(yaml.safe_dump({**port, "fleet": {"pools": pools}}))
    gone = {"rayHead": {"affinity": None}, "fleet": {"pools": {"b": None}}}
    second.write_text(yaml.safe_dump({**gone, "imagePullSecrets": [{"name": "b"}]}))
    sets = ["--set", "fleet.pools.a.replicas=2", "--set-string", "fleet.pools.a.revision=2"]
    values = computed_values(["--values", str(first), "--values", str(second), *sets])
    assert values["service"] == {**defaults()["service"], "port": 81}
    assert values["imagePullSecrets"] == [{"name": "b"}]
    assert "affinity" not in values["rayHead"] and "resources" in values["rayHead"]
    assert values["fleet"]["pools"] == {"a": {**MODEL, "replicas": 2, "revision": "2"}}
