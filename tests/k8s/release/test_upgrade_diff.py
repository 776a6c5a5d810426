"""What an upgrade would do, from the chart's own objects before and after a change of values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from deployments.fleet.applications import serve_config
from deployments.fleet.fleet import Fleet
from k8s.client.cluster import Cluster
from k8s.needs.needs import needs_of
from k8s.release.release import release_of, seen
from k8s.release.spec_changes import differences, spec_changes
from k8s.release.upgrade_diff import UpgradeDiff, serve_changes, upgrade_diff
from tests.helm.fleets import SMALL
from tests.helm.helm import NAMESPACE, Object, defaults, merged, of_kind, render
from tests.k8s.api import Api
from tests.k8s.objects import RAYCLUSTERS, RAYSERVICES, pod
from tests.k8s.release_objects import ACTIVE, LABELS, cluster_of

SLO = {"interactive": {"ttft_s": 1}}
FOUR = {"tensor_parallel_size": 4}
POOLS = {
    "large": {**SMALL, "served_model_name": "large", "slo": SLO, "engine_args": FOUR},
    "small": {**SMALL, "replicas": 2, "env": {"HF_TOKEN_PATH": "/a"}},
}
VALUES: Object = {"fleet": {"name": "test", "gateway": {"replicas": 2}, "pools": POOLS}}


def pools(**changed: Any) -> Object:
    return {"fleet": {"pools": changed}}


def diff(
    change: Object,
    made_by: str = "v1.6.2",
    forbidden: tuple[str, str] | None = None,
    values: Object = VALUES,
    pods: Sequence[Object] = (),
) -> UpgradeDiff:
    """Return the diff of the values with the change. KubeRay made the cluster without it.

    Its pods are one of four GPUs by default.
    """
    service = of_kind(render(values), "RayService")
    service["metadata"]["namespace"] = NAMESPACE
    service["status"] = {"activeServiceStatus": {"rayClusterName": ACTIVE}}
    cluster = as_go_has_it(cluster_of(service, ACTIVE))
    cluster["metadata"]["annotations"] = {"ray.io/kuberay-version": made_by}
    with Api(RAYSERVICES, RAYCLUSTERS, service, cluster, *(pods or [gpu_pod()])) as api:
        if forbidden:
            api.forbid(*forbidden)
        asked = Cluster(str(api.kubeconfig))
        there = release_of(asked, NAMESPACE, "")
        assert there is not None
        objects = seen(asked, there)
    values = merged(values, change)
    after = render(values)
    needs = needs_of(after, Fleet.model_validate(values["fleet"]), merged(defaults(), values))
    return upgrade_diff(objects, of_kind(after, "RayService"), needs)


def gpu_pod() -> Object:
    return pod("large-0", "a100-1", namespace=NAMESPACE, gpus=4, labels=LABELS)


def as_go_has_it(cluster: Object) -> Object:
    """What KubeRay and the API server make of the same text."""
    spec = cluster["spec"]
    for group in spec["workerGroupSpecs"]:
        # Ray's autoscaler wants another number
        group |= {"replicas": 3, "numOfHosts": 1, "scaleStrategy": {"workersToDelete": ["x"]}}
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        group["template"]["metadata"]["creationTimestamp"] = None
        for container in group["template"]["spec"]["containers"]:
            container["resources"].setdefault("claims", [])
            for port in container["ports"]:
                port["protocol"] = "TCP"
    return cluster


def test_the_same_values_change_nothing() -> None:
    found = diff({})
    assert not (found.hot or found.cold or found.pods or found.added or found.moves)
    assert (found.gpus.now, found.gpus.after) == (4, 6)


def test_a_changed_pod_template_needs_a_second_cluster_with_its_gpus() -> None:
    found = diff({"image": {"gpu": {"tag": "0.2.0"}}})
    assert found.moves
    assert {change.where for change in found.pods} == {"large", "small"}
    assert {change.path for change in found.pods} == {"containers.ray-engine.image"}
    assert (found.gpus.now, found.gpus.meanwhile, found.gpus.after) == (4, 10, 6)


def engines(pool: str, count: int, gpus: int) -> list[Object]:
    labels = {**LABELS, "antefix/pool": pool}
    return [
        pod(f"{pool}-{i}", "a100-1", namespace=NAMESPACE, gpus=gpus, labels=labels)
        for i in range(count)
    ]


AUTOSCALED = {"autoscaling": {"min_replicas": 1, "max_replicas": 8}, "slo": SLO}
ARGUMENT = {"engine_args": {"max_model_len": 1024}}


def values_with_surge(percent: int, **of_small: Any) -> Object:
    """One pool, that starts engines before it stops others."""
    fleet = {"name": "test", "surge_percent": percent, "pools": {"small": {**SMALL, **of_small}}}
    return {"fleet": fleet}


@pytest.mark.parametrize(
    "replicas, percent, more", [(1, 20, 1), (5, 20, 1), (6, 20, 2), (7, 50, 4), (6, 0, 0)]
)
def test_a_surge_is_rounded_up_as_ray_serve_does(replicas: int, percent: int, more: int) -> None:
    found = diff(
        pools(small=ARGUMENT),
        values=values_with_surge(percent, replicas=replicas),
        pods=engines("small", replicas, 1),
    )
    assert found.gpus.meanwhile == replicas + more


def test_a_surge_takes_all_stages_of_a_replica() -> None:
    staged = {"replicas": 3, "engine_args": {"pipeline_parallel_size": 2, **FOUR}}
    found = diff(
        pools(small={"engine_args": {"max_model_len": 1024}}),
        values=values_with_surge(20, **staged),
        pods=engines("small", 6, 4),
    )
    assert (found.gpus.now, found.gpus.meanwhile, found.gpus.after) == (24, 32, 24)


def test_a_scaled_up_pool_surges_from_its_current_size_and_keeps_it() -> None:
    found = diff(
        pools(small=ARGUMENT),
        values=values_with_surge(20, replicas=2, **AUTOSCALED),
        pods=engines("small", 6, 1),
    )
    assert (found.gpus.now, found.gpus.meanwhile, found.gpus.after) == (6, 8, 6)


def test_placeholders_of_warm_nodes_count_as_free_gpus() -> None:
    placeholders = [
        pod(
            f"placeholder-{number}",
            "a100-1",
            namespace=NAMESPACE,
            gpus=1,
            labels={**LABELS, "antefix/component": "placeholder", "antefix/pool": "small"},
        )
        for number in range(3)
    ]
    found = diff(
        pools(small=ARGUMENT),
        values=values_with_surge(20, replicas=2, **AUTOSCALED),
        pods=[*engines("small", 2, 1), *placeholders],
    )
    assert (found.gpus.now, found.gpus.meanwhile, found.gpus.after) == (2, 3, 2)


def test_a_pool_above_its_new_maximum_releases_gpus() -> None:
    found = diff(
        pools(small={"autoscaling": {"max_replicas": 3}}),
        values=values_with_surge(0, replicas=2, **AUTOSCALED),
        pods=engines("small", 6, 1),
    )
    assert (found.gpus.now, found.gpus.meanwhile, found.gpus.after) == (6, 6, 3)


def test_a_second_cluster_starts_with_the_initial_number_of_replicas() -> None:
    found = diff(
        {"image": {"gpu": {"tag": "0.2.0"}}},
        values=values_with_surge(0, replicas=2, **AUTOSCALED),
        pods=engines("small", 6, 1),
    )
    assert (found.gpus.now, found.gpus.meanwhile, found.gpus.after) == (6, 8, 2)


def test_without_a_second_cluster_a_change_of_pods_waits() -> None:
    found = diff({"image": {"gpu": {"tag": "0.2.0"}}, "upgrade": {"strategy": "None"}})
    assert found.pods and not found.moves
    assert found.gpus.meanwhile == 6


@pytest.mark.parametrize(
    "name, added, moves",
    [("tiny", ["tiny"], False), ("alpha", [], True)],
    ids=["sorts last", "sorts first"],
)
def test_a_pool_that_sorts_last_is_added_to_the_cluster(
    name: str, added: list[str], moves: bool
) -> None:
    found = diff(pools(**{name: {**SMALL, "served_model_name": name}}))
    assert (found.added, found.moves) == (added, moves)
    assert found.gpus.after == 7


def test_a_removed_pool_needs_a_second_cluster() -> None:
    found = diff(pools(large=None))
    assert found.moves
    assert [(c.where, c.path, c.new) for c in found.pods] == [("large", "", None)]


TOLERATIONS = {"enginePods": {"tolerations": [{"operator": "Exists"}]}}


@pytest.mark.parametrize("made_by, moves", [("v1.5.1", True), ("v1.6.2", False), ("", False)])
def test_changed_tolerations_need_no_second_cluster_since_kuberay_1_6(
    made_by: str, moves: bool
) -> None:
    assert diff(TOLERATIONS, made_by=made_by).moves == moves


def test_a_new_slo_applies_to_running_pods_and_an_argument_restarts_its_engines() -> None:
    slo = {"slo": {"interactive": {"ttft_s": 2}}}
    arguments = {"engine_args": {"max_model_len": 1024}}
    found = diff(pools(large=slo, small=arguments))
    assert [c.path for c in found.hot] == ["fleet.pools.large.slo.interactive.ttft_s"]
    assert [c.path for c in found.cold] == ["fleet.pools.small.engine_args"]
    assert (found.gateways, found.pools, found.pods) == (False, ["small"], [])


def test_a_changed_termination_grace_period_changes_pods() -> None:
    assert diff({"fleet": {"gateway": {"request_timeout_s": 999}}}).moves


FLEET: Object = {"name": "test", "redis": {"url": "redis://:password@x"}, "pools": POOLS}
WITH_POOL = {**POOLS, "tiny": {**SMALL, "env": {"A": "secret"}}}


def configured(**pools: Any) -> str:
    return yaml.safe_dump(serve_config(merged(FLEET, {"pools": pools})))


@pytest.mark.parametrize(
    "change, hot, gateways, restarted",
    [
        ({"large": {"slo": {"interactive": {"ttft_s": 2}}}}, True, False, set()),
        ({"small": {"engine_args": {"max_model_len": 1024}}}, False, False, {"small"}),
        ({"small": {"replicas": 3}}, True, False, set()),
    ],
    ids=["slo", "engine_args", "replicas"],
)
def test_the_diff_restarts_the_same_parts_as_ray_serve(
    change: Object, hot: bool, gateways: bool, restarted: set[str]
) -> None:
    told = serve_changes(configured(), configured(**change))
    (changed,) = told.changes
    assert changed.path.startswith(f"fleet.pools.{next(iter(change))}.")
    assert (bool(told.hot), told.gateways, set(told.pools)) == (hot, gateways, restarted)


def test_a_release_of_one_application_restarts_all_of_it() -> None:
    def of_one(import_path: str, fleet: Object) -> str:
        args = {"fleet": fleet}
        one = {"name": "antefix", "import_path": import_path, "args": args}
        return yaml.safe_dump({"applications": [one]})

    changed = merged(FLEET, {"pools": {"large": {"slo": {"interactive": {"ttft_s": 2}}}}})
    told = serve_changes(of_one("a:b", FLEET), of_one("a:b", changed))
    assert (told.gateways, set(told.pools), set(told.hot)) == (True, {"large", "small"}, set())
    assert serve_changes(of_one("a:b", FLEET), of_one("a:b", FLEET)).gateways is False
    told = serve_changes(of_one("a:b", FLEET), configured())
    assert (told.gateways, set(told.pools)) == (True, {"large", "small"})


def test_only_the_keys_of_a_new_section_are_shown() -> None:
    told = serve_changes(configured(), yaml.safe_dump(serve_config({**FLEET, "pools": WITH_POOL})))
    (change,) = told.changes
    assert (change.path, change.old, change.new) == ("fleet.pools.tiny", None, "model, env")


def test_possible_secrets_are_not_shown() -> None:
    found = diff(pools(small={"env": {"HF_TOKEN_PATH": "/b"}}))
    (change,) = [c for c in found.cold if ".env." in c.path]
    assert (change.old, change.new) == ("not shown", "not shown")


def test_a_forbidden_request_is_named() -> None:
    found = diff({}, forbidden=("list", "pods"))
    assert f"may not list pods in namespace {NAMESPACE}" in found.denied
    found = diff({}, forbidden=("get", "rayclusters"))
    assert not found.pods


def test_equal_quantities_and_empty_fields_are_no_difference() -> None:
    pod: Object = {
        "template": {
            "spec": {
                "volumes": [],
                "containers": [{"name": "a", "resources": {"limits": {"memory": "1024Mi"}}}],
            }
        }
    }
    other = copy.deepcopy(pod)
    del other["template"]["spec"]["volumes"]
    limits = other["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits["memory"] = "1Gi"
    assert spec_changes({"headGroupSpec": pod}, {"headGroupSpec": other}, ()).changes == ()
    limits["memory"] = "2Gi"
    (change,) = spec_changes({"headGroupSpec": pod}, {"headGroupSpec": other}, ()).changes
    where = "containers.a.resources.limits.memory"
    assert (change.where, change.path, change.old) == ("head", where, "1Gi")


def test_the_differing_items_of_a_list_are_reported() -> None:
    old, new = {"command": ["a", "b", "c"]}, {"command": ["a", "x", "c"]}
    assert list(differences(old, new)) == [("command.1", "b", "x")]
    assert list(differences(old, {"command": ["a"]})) == [("command", ["a", "b", "c"], ["a"])]
