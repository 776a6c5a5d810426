"""Whether a release has room on a cluster's nodes, and what preflight says where it has not."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.preflight.findings import PreflightFinding
from tests.k8s.asking import (
    EIGHT,
    READY,
    finding_titled,
    llama,
    preflight_findings,
    warnings_and_problems,
)
from tests.k8s.kinds import crd
from tests.k8s.objects import (
    A100,
    NAMESPACE,
    RAYSERVICES,
    Object,
    named,
    namespace,
    node,
    operator,
    pod,
)


def test_a_pod_of_four_gpus_needs_them_on_one_node() -> None:
    split = {"llama-70b": llama(replicas=3, engine_args={"tensor-parallel-size": 4})}
    nodes = [
        node("a100-1", 8),
        node("a100-2", 8),
        pod("other-1", "a100-1", gpus=4),
        pod("other-2", "a100-2", gpus=6),
    ]
    finding = finding_titled(preflight_findings(*READY, *nodes, pools=split), "room for llama-70b")
    assert finding.severity == "problem"
    assert finding.seen == (
        "needs 3 pods of 4 GPUs on one node, 8 cores, 64 GiB memory; 2 pods without a node; "
        "free on nodes that match: a100-1: 4 GPUs, a100-2: 2 GPUs"
    )
    assert finding.remedy == (
        "free or add nodes with 4 free GPUs each, or lower fleet.pools.llama-70b.replicas"
    )


def test_finished_and_preemptible_pods_and_those_of_the_release_take_no_room() -> None:
    own = {"app.kubernetes.io/instance": "mine"}
    pods = [
        pod("ended", "a100-1", gpus=2, status={"phase": "Succeeded"}),
        pod("placeholder", "a100-1", gpus=2, spec={"priority": -10}),
        pod("own", "a100-1", gpus=2, namespace=NAMESPACE, labels=own),
    ]
    four = {"llama": llama(replicas=4, engine_args={"tensor_parallel_size": 2})}
    assert (
        finding_titled(
            preflight_findings(*READY, EIGHT, *pods, pools=four, release="mine"), "room for llama"
        ).severity
        == "ok"
    )
    others = preflight_findings(*READY, EIGHT, *pods, pools=four, release="another")
    assert finding_titled(others, "room for llama").severity == "problem"


def test_tensor_parallelism_wider_than_any_node_is_reported_with_a_remedy() -> None:
    wide = {"llama": llama(engine_args={"tensor_parallel_size": 16})}
    finding = finding_titled(preflight_findings(*READY, EIGHT, pools=wide), "room for llama")
    assert "a node has 8 GPUs at most" in finding.seen
    assert "lower tensor_parallel_size of llama to 8 and multiply pipeline" in finding.remedy


def test_tensor_parallelism_is_lowered_to_a_divisor_only() -> None:
    four = {"llama": llama(engine_args={"tensor_parallel_size": 4})}
    finding = finding_titled(
        preflight_findings(*READY, node("a100-1", 3), pools=four), "room for llama"
    )
    assert "to 2 and multiply pipeline_parallel_size by 2, or add" in finding.remedy


def test_pipeline_parallelism_needs_as_many_pods_on_any_nodes() -> None:
    deep = {"llama": llama(engine_args={"tensor_parallel_size": 8, "pipeline_parallel_size": 2})}
    found = preflight_findings(*READY, EIGHT, node("a100-2", 8), pools=deep)
    assert finding_titled(found, "room for llama").seen.endswith("memory: on a100-1, a100-2")


def test_pools_share_the_gpus_of_nodes() -> None:
    pools = {"a": llama(replicas=5, served_model_name="a"), "b": llama(replicas=5)}
    found = preflight_findings(*READY, EIGHT, pools=pools)
    assert list(warnings_and_problems(found)) == ["room for b"]
    assert warnings_and_problems(found)["room for b"].endswith("a100-1: 8 GPUs, which a use too")


def test_a_node_selector_that_no_node_has_is_named() -> None:
    values = {"poolPods": {"llama": {"nodeSelector": {"gpu": "h100"}}}}
    finding = finding_titled(preflight_findings(*READY, EIGHT, values=values), "room for llama")
    assert "no node matches poolPods.llama: a100-1: no label gpu=h100" in finding.seen
    assert "poolPods.llama.nodeSelector" in finding.remedy


def test_a_node_selector_that_would_match_is_proposed() -> None:
    values = {"enginePods": {"nodeSelector": {"nvidia.com/gpu.product": A100}}}
    small = node("a100-1", 8, model="NVIDIA-A100-SXM4-40GB")
    assert finding_titled(
        preflight_findings(*READY, small, values=values), "room for llama"
    ).remedy.startswith(
        "set poolPods.llama.nodeSelector to {nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB} "
        "(a100-1), or poolPods.llama.tolerations"
    )


def test_a_taint_that_is_not_tolerated_is_named() -> None:
    taints = [{"key": "team", "value": "ml", "effect": "NoSchedule"}]
    finding = finding_titled(
        preflight_findings(*READY, node("a100-1", 8, taints=taints)), "room for llama"
    )
    assert "no node matches enginePods: a100-1: taint team=ml:NoSchedule" in finding.seen


def test_a_preferring_taint_excludes_no_pods() -> None:
    taints = [{"key": "team", "effect": "PreferNoSchedule"}]
    assert (
        finding_titled(
            preflight_findings(*READY, node("a100-1", 8, taints=taints)), "room for llama"
        ).severity
        == "ok"
    )


@pytest.mark.parametrize(
    "expression, severity",
    [
        ({"operator": "In", "values": [A100]}, "ok"),
        ({"operator": "NotIn", "values": [A100]}, "problem"),
        ({"operator": "Exists"}, "ok"),
        ({"operator": "DoesNotExist"}, "problem"),
    ],
    ids=["In", "NotIn", "Exists", "DoesNotExist"],
)
def test_required_node_affinity_is_followed(expression: Object, severity: str) -> None:
    term = {"matchExpressions": [{"key": "nvidia.com/gpu.product", **expression}]}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    values = {"enginePods": {"affinity": {"nodeAffinity": rule}}}
    assert (
        finding_titled(preflight_findings(*READY, EIGHT, values=values), "room for llama").severity
        == severity
    )


@pytest.mark.parametrize("away", [{"ready": False}, {"cordoned": True}], ids=str)
def test_an_unschedulable_node_has_no_room(away: dict[str, Any]) -> None:
    found = preflight_findings(*READY, node("a100-1", 8, **away))
    finding = finding_titled(found, "room for llama")
    assert "not ready, or cordoned" in finding.seen


def test_memory_larger_than_any_node_is_named_with_its_setting() -> None:
    finding = finding_titled(
        preflight_findings(*READY, node("a100-1", 8, memory="32Gi")), "room for llama"
    )
    assert finding.seen.endswith("the largest node that matches has 32 GiB memory")
    assert "lower poolPods.llama.resources.requests" in finding.remedy


def test_gateways_and_head_need_room_too() -> None:
    small = node("cpu-1", cpu="2")
    found = preflight_findings(RAYSERVICES, operator(), namespace(NAMESPACE), small, EIGHT)
    assert "cpu-1: 2 cores" in finding_titled(found, "room for gateway").seen


def test_growth_beyond_the_nodes_is_a_note_without_node_autoscaling() -> None:
    slo = {"interactive": {"ttft_s": 1}}
    grows = {"llama": llama(slo=slo, autoscaling={"max_replicas": 12})}
    large = node("a100-1", 8, memory="1Ti")
    finding = finding_titled(preflight_findings(*READY, large, pools=grows), "growth of llama")
    assert finding.severity == "note"
    assert "12 pods, but only 8 fit" in finding.seen


KARPENTER = crd("karpenter.sh", "NodePool", "v1", namespaced=False)
SLO = {"interactive": {"ttft_s": 1}}
# as values/multi-node-a100.yaml: 14 GPUs at first, 24 if all could grow
TWO_POOLS = {
    "large": llama(
        served_model_name="large",
        slo=SLO,
        replicas=2,
        warm_replicas=1,
        autoscaling={"min_replicas": 2, "max_replicas": 5},
        engine_args={"tensor_parallel_size": 4},
    ),
    "small": llama(
        served_model_name="small",
        slo=SLO,
        replicas=2,
        autoscaling={"min_replicas": 1, "max_replicas": 4},
    ),
}


def roomy(*gpus: int) -> list[Object]:
    """Nodes with N GPUs each, and plenty of all other resources."""
    return [node(f"a100-{i}", n, cpu="256", memory="2Ti") for i, n in enumerate(gpus, 1)]


def growth(*gpus: int, budget: float | None) -> dict[str, str]:
    fleet = {"gpu_budget": budget}
    found = preflight_findings(*READY, *roomy(*gpus), pools=TWO_POOLS, fleet=fleet)
    return {one.title: one.seen for one in found if one.title.startswith("growth of")}


def test_growth_is_counted_within_the_fleets_gpu_budget() -> None:
    assert growth(8, 8, 4, budget=20) == {}
    assert "4 pods, but only 0 fit" in growth(8, 8, budget=20)["growth of small"]
    assert set(growth(8, 8, 4, budget=None)) == {"growth of small"}


def budget_findings(*objects: Object, budget: float | None) -> list[PreflightFinding]:
    found = preflight_findings(
        *READY, *objects, pools=TWO_POOLS, fleet={"gpu_budget": budget, "surge_percent": 0}
    )
    return [one for one in found if one.title == "GPU budget"]


def test_a_gpu_budget_above_the_gpus_of_the_cluster_is_a_warning() -> None:
    (finding,) = budget_findings(*roomy(8, 8), budget=20)
    assert finding.severity == "warning"
    assert "fleet.gpu_budget is 20, but engines can use 16 GPUs of the cluster" in finding.seen
    assert finding.remedy == "set fleet.gpu_budget: 16, or add 4 GPUs"


@pytest.mark.parametrize(
    ("gpus", "budget"), [([8, 8], 16), ([8, 8, 4], 20), ([8, 8], None), ([8, 8, 8], 100)], ids=str
)
def test_a_gpu_budget_within_the_gpus_or_beyond_the_growth_of_pools_is_not_reported(
    gpus: list[int], budget: float | None
) -> None:
    assert budget_findings(*roomy(*gpus), budget=budget) == []


def test_gpus_that_no_engine_may_use_do_not_count_for_the_gpu_budget() -> None:
    cordoned = node("a100-9", 8, cordoned=True)
    (finding,) = budget_findings(*roomy(8, 8), cordoned, budget=20)
    assert "16 GPUs" in finding.seen


def test_a_large_gpu_budget_is_a_note_if_nodes_are_autoscaled() -> None:
    (finding,) = budget_findings(*roomy(8, 8), KARPENTER, budget=20)
    assert finding.severity == "note"


def test_a_pool_that_uses_the_whole_gpu_budget_may_find_fragmented_nodes() -> None:
    # 20 GPUs, and whole fours in them for 3 engines only
    assert "but only 3 fit" in growth(7, 7, 6, budget=20)["growth of large"]


@pytest.mark.parametrize(
    "gpus, short",
    [([8, 8], ["large"]), ([8, 8, 1], ["large"]), ([8, 8, 4], []), ([8, 6], ["large", "small"])],
    ids=str,
)
def test_a_rollout_that_starts_an_extra_engine_needs_room_for_it(
    gpus: list[int], short: list[str]
) -> None:
    fleet = {"surge_percent": 20}
    found = preflight_findings(*READY, *roomy(*gpus), pools=TWO_POOLS, fleet=fleet)
    titles = {f"room for a rollout of {name}" for name in short}
    assert titles == {one.title for one in found if "rollout" in one.title}
    assert all(finding_titled(found, title).severity == "warning" for title in titles)


def test_a_rollout_that_stops_an_engine_first_needs_no_room() -> None:
    found = preflight_findings(*READY, *roomy(8, 6), pools=TWO_POOLS)
    assert not [one for one in found if "rollout" in one.title]


def test_missing_room_after_the_loss_of_a_node_is_a_note() -> None:
    found = preflight_findings(*READY, *roomy(8, 8), pools=TWO_POOLS)
    finding = finding_titled(found, "loss of a node and small")
    assert finding.severity == "note"
    assert finding.seen.startswith("if one of a100-1, a100-2 is lost")
    assert finding.remedy.endswith("lower fleet.pools.small.autoscaling.min_replicas")
    assert not [one for one in found if one.title == "loss of a node and large"]


@pytest.mark.parametrize("gpus", [[8, 8, 8], [16]], ids=str)
def test_the_loss_of_a_node_is_not_reported_if_others_have_room_or_there_is_only_one(
    gpus: list[int],
) -> None:
    found = preflight_findings(*READY, *roomy(*gpus), pools=TWO_POOLS)
    assert not [one for one in found if one.title.startswith("loss of a node")]


def test_an_upgrade_that_would_wait_for_gpus_is_a_warning_unless_it_makes_no_second_cluster() -> (
    None
):
    full = {"llama": llama(replicas=8)}
    assert (
        "second llama"
        in warnings_and_problems(preflight_findings(*READY, EIGHT, pools=full))[
            "room for an upgrade"
        ]
    )
    in_place = {"upgrade": {"strategy": "None"}}
    assert (
        warnings_and_problems(preflight_findings(*READY, EIGHT, pools=full, values=in_place)) == {}
    )


@pytest.mark.parametrize(
    "autoscaler",
    [
        KARPENTER,
        named("v1", "ConfigMap", "cluster-autoscaler-status", "kube-system"),
    ],
    ids=["karpenter", "cluster-autoscaler"],
)
def test_missing_nodes_are_no_problem_where_nodes_are_autoscaled(autoscaler: Object) -> None:
    finding = finding_titled(preflight_findings(*READY, autoscaler), "room for llama")
    assert finding.severity == "warning"
    assert finding.remedy.startswith("the node autoscaler may add nodes; otherwise ")


def test_a_gpu_node_without_its_device_plugin_differs_from_one_without_gpus() -> None:
    bare = node("a100-1", labels={"nvidia.com/gpu.product": A100})
    finding = finding_titled(preflight_findings(*READY, bare), "device plugin")
    assert finding.severity == "problem"
    assert finding.seen == "a100-1: labeled with a GPU, but no nvidia.com/gpu is allocatable"


def test_a_fleet_without_gpus_asks_for_none() -> None:
    found = preflight_findings(*READY, node("cpu-2"), pools={"small": llama(resources={"gpus": 0})})
    assert finding_titled(found, "GPUs").seen == "the fleet needs none"
    assert warnings_and_problems(found) == {}


def test_an_accelerator_type_that_chooses_no_node_is_a_warning() -> None:
    pools = {"llama": llama(resources={"accelerator_type": "A100"})}
    mixed = [EIGHT, node("l4-1", 4, model="NVIDIA-L4")]
    assert (
        "does not select nodes"
        in finding_titled(preflight_findings(*READY, *mixed, pools=pools), "GPU of llama").seen
    )
