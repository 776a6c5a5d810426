"""Placeholders, and the controller that sizes them."""

from typing import Any

import kubernetes_validate
import msgspec
import pytest

from k8s.nodes.warm_nodes import WarmNodesPool
from k8s.nodes.warm_nodes_controller import Settings
from tests.helm.fleets import values
from tests.helm.helm import (
    KUBERNETES,
    NAMESPACE,
    RELEASE,
    HelmError,
    Object,
    all_of_kind,
    of_kind,
    render,
)
from tests.k8s.api import Api
from tests.k8s.kinds import crd
from tests.some import some

TEMPLATE = "templates/warm-nodes.yaml"
GPU = "nvidia.com/gpu"
PLACEHOLDER, CONTROLLER = "afx-antefix-placeholder-big", "afx-antefix-warm-nodes"
SCALED = {
    "model": "org/model",
    "slo": {"interactive": {"ttft_s": 2}},
    "autoscaling": {"min_replicas": 1, "max_replicas": 5},
}
POOLS = {
    "big": {**SCALED, "warm_replicas": 1, "engine_args": {"tensor_parallel_size": 4}},
    "staged": {
        **SCALED,
        "engine_args": {"tensor-parallel-size": 8, "pipeline-parallel-size": 2},
    },
    "fixed": {"model": "org/model", "resources": {"gpus": 1}},
    "cpu": {**SCALED, "model": "embedded", "resources": {"gpus": 0}},
}
NODES = {
    "nodeSelector": {"kind": "a100"},
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
    "runtimeClassName": "nvidia",
    "resources": {"requests": {"cpu": "12", "memory": "96Gi"}, "limits": {"memory": "96Gi"}},
}


def warm(
    of_fleet: dict[str, Any] = POOLS, gpu_budget: float | None = 40, **of_chart: Any
) -> dict[str, Any]:
    made = values(pools=of_fleet, fleet={"gpu_budget": gpu_budget})
    return {**made, "warmNodes": {"enabled": True}, **of_chart}


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return render(warm(poolPods={"big": NODES}))


@pytest.fixture(scope="module")
def warm_node_objects() -> list[Object]:
    return render(warm(poolPods={"big": NODES}), show_only=TEMPLATE)


def pod_of(objects: list[Object], name: str) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind(objects, "Deployment", name)["spec"]["template"]["spec"]
    return spec


def settings_of(objects: list[Object]) -> Settings:
    (container,) = pod_of(objects, CONTROLLER)["containers"]
    environment = {v["name"]: v["value"] for v in container["env"]}
    return msgspec.json.decode(environment["ANTEFIX_WARM_NODES"], type=Settings)


def engine_of(objects: list[Object], pool: str) -> dict[str, Any]:
    ray = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]
    (group,) = [g for g in ray["workerGroupSpecs"] if g["groupName"] == pool]
    spec: dict[str, Any] = group["template"]["spec"]
    return spec


def test_no_warm_node_object_is_rendered_by_default() -> None:
    objects = render(values(pools=POOLS))
    assert not all_of_kind(objects, "PriorityClass")
    assert not all_of_kind(objects, "Deployment")
    assert not all_of_kind(objects, "Lease")


def test_only_pools_that_grow_on_gpus_have_placeholders(objects: list[Object]) -> None:
    found = all_of_kind(objects, "Deployment", "placeholder")
    assert {o["metadata"]["name"] for o in found} == {PLACEHOLDER, "afx-antefix-placeholder-staged"}
    assert {o["spec"]["replicas"] for o in found} == {0}


def test_a_placeholder_never_blocks_a_real_pod(objects: list[Object]) -> None:
    priority, pod = of_kind(objects, "PriorityClass"), pod_of(objects, PLACEHOLDER)
    assert pod["priorityClassName"] == priority["metadata"]["name"]
    assert pod["terminationGracePeriodSeconds"] == 0
    assert priority["value"] < 0
    assert priority["preemptionPolicy"] == "Never"
    assert priority["globalDefault"] is False
    # so an engine's priority is 0, or what the cluster's own default is
    assert "priorityClassName" not in engine_of(objects, "big")


@pytest.mark.parametrize("pool", ["big", "staged"])
def test_a_placeholder_has_the_resources_and_the_scheduling_constraints_of_an_engine(
    objects: list[Object], pool: str
) -> None:
    placeholder, engine = pod_of(objects, f"placeholder-{pool}"), engine_of(objects, pool)
    (pause,), (ray,) = placeholder["containers"], engine["containers"]
    assert pause["resources"] == ray["resources"]
    for key in ("nodeSelector", "tolerations", "affinity", "runtimeClassName"):
        assert placeholder.get(key) == engine.get(key), key


def test_settings_of_a_pool_apply_only_to_its_placeholders(objects: list[Object]) -> None:
    big, staged = (pod_of(objects, f"placeholder-{pool}") for pool in ("big", "staged"))
    assert big["nodeSelector"] == NODES["nodeSelector"]
    assert "nodeSelector" not in staged
    assert big["containers"][0]["resources"]["requests"] == {
        "cpu": "12",
        "memory": "96Gi",
        GPU: "4",
    }
    assert staged["containers"][0]["resources"]["limits"][GPU] == "8"


def test_a_placeholder_that_waits_for_a_node_does_not_fail_the_deployment(
    objects: list[Object],
) -> None:
    deployment = of_kind(objects, "Deployment", PLACEHOLDER)
    assert deployment["spec"]["progressDeadlineSeconds"] == 2**31 - 1


def test_no_placeholder_is_taken_for_an_engine(objects: list[Object]) -> None:
    for deployment in some(all_of_kind(objects, "Deployment")):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels["antefix/component"] != "engine"
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert selector.items() <= labels.items()


def test_the_controller_reads_the_settings_of_the_chart(objects: list[Object]) -> None:
    settings = settings_of(objects)
    assert settings == Settings(
        name="afx-antefix",
        namespace=NAMESPACE,
        engines="app.kubernetes.io/instance=afx,antefix/component=engine",
        status_url="http://afx-antefix:80/antefix/status",
        gpu_resource=GPU,
        max_per_pool=2,
        gpu_budget=40.0,
        pools=(
            WarmNodesPool("big", 1, max_replicas=5, warm_replicas=1, gpus_per_pod=4),
            WarmNodesPool("staged", 2, max_replicas=5, warm_replicas=0, gpus_per_pod=8),
        ),
    )
    made = {o["metadata"]["name"] for o in all_of_kind(objects, "Deployment", "placeholder")}
    assert made == {settings.placeholders(pool.name) for pool in settings.pools}


def test_without_a_gpu_budget_the_controller_gets_none() -> None:
    assert settings_of(render(warm(gpu_budget=None), show_only=TEMPLATE)).gpu_budget is None


def test_the_controller_selects_the_engine_pods(objects: list[Object]) -> None:
    ray = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]
    pools = {
        group["template"]["metadata"]["labels"].get("antefix/pool")
        for group in ray["workerGroupSpecs"]
        if group["template"]["metadata"]["labels"]["antefix/component"] == "engine"
    }
    assert pools == POOLS.keys()


def test_the_controller_has_only_the_permissions_it_needs(warm_node_objects: list[Object]) -> None:
    names = [PLACEHOLDER, "afx-antefix-placeholder-staged"]
    assert of_kind(warm_node_objects, "Role")["rules"] == [
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "resourceNames": names,
            "verbs": ["get", "patch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [CONTROLLER],
            "verbs": ["get", "update"],
        },
    ]
    assert of_kind(warm_node_objects, "Lease")["metadata"]["name"] == CONTROLLER
    account = of_kind(warm_node_objects, "ServiceAccount")["metadata"]["name"]
    binding = of_kind(warm_node_objects, "RoleBinding")
    assert binding["roleRef"]["name"] == of_kind(warm_node_objects, "Role")["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    assert pod_of(warm_node_objects, CONTROLLER)["serviceAccountName"] == account


def test_only_the_controller_has_a_token(warm_node_objects: list[Object]) -> None:
    assert pod_of(warm_node_objects, CONTROLLER)["automountServiceAccountToken"] is True
    assert pod_of(warm_node_objects, PLACEHOLDER)["automountServiceAccountToken"] is False


def test_the_controller_reads_keys_where_they_are_replaced_without_a_restart(
    warm_node_objects: list[Object],
) -> None:
    pod = pod_of(warm_node_objects, CONTROLLER)
    (container,), (volume,) = pod["containers"], pod["volumes"]
    assert volume["secret"] == {
        "secretName": "afx-antefix-auth",
        "items": [{"key": "api-keys", "path": "api-keys"}],
    }
    (mount,) = container["volumeMounts"]
    environment = {v["name"]: v["value"] for v in container["env"]}
    assert environment["ANTEFIX_API_KEYS_FILE"] == f"{mount['mountPath']}/api-keys"
    assert "subPath" not in mount
    assert container["command"] == ["python", "-m", "k8s.nodes.warm_nodes_controller"]


def test_kubernetes_accepts_every_warm_node_object(warm_node_objects: list[Object]) -> None:
    assert len(warm_node_objects) == 8
    for found in warm_node_objects:
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


def test_a_changed_priority_creates_a_new_priority_class() -> None:
    names = {
        of_kind(
            render(warm(warmNodes={"enabled": True, "priority": value}), show_only=TEMPLATE),
            "PriorityClass",
        )["metadata"]["name"]
        for value in (-10, -5)
    }
    assert names == {"llm-afx-antefix-placeholder-10", "llm-afx-antefix-placeholder-5"}


def test_an_upgrade_keeps_the_existing_placeholders(warm_node_objects: list[Object]) -> None:
    deployment = of_kind(warm_node_objects, "Deployment", PLACEHOLDER)
    owned = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    metadata = {**deployment["metadata"], "namespace": NAMESPACE, "annotations": owned}
    there = {**deployment, "metadata": metadata, "spec": {**deployment["spec"], "replicas": 2}}
    rbac = "rbac.authorization.k8s.io"
    with Api(*(crd(rbac, kind, "v1") for kind in ("Role", "RoleBinding"))) as api:
        api.add(crd("ray.io", "RayService", "v1"), there)
        made = render(
            warm(),
            *("--dry-run=server", "--disable-openapi-validation"),
            *("--kubeconfig", str(api.kubeconfig)),
        )
    sizes = {
        o["metadata"]["name"]: o["spec"]["replicas"]
        for o in all_of_kind(made, "Deployment", "placeholder")
    }
    assert sizes == {PLACEHOLDER: 2, "afx-antefix-placeholder-staged": 0}


def test_warm_nodes_without_an_autoscaled_gpu_pool_are_rejected() -> None:
    with pytest.raises(HelmError, match=r"no pool of the fleet has both GPUs and autoscaling"):
        render(warm({"fixed": POOLS["fixed"]}))
