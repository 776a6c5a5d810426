"""How many of the fleet's pods a node drain may take at once."""

from typing import Any

from tests.helm.fleets import SMALL, values
from tests.helm.helm import Object, all_of_kind, of_kind, render
from tests.helm.policies import selects
from tests.some import some

TEMPLATE = "templates/poddisruptionbudget.yaml"


def budgets(**given: Any) -> dict[str, int]:
    """Pods that stay, by the end of the budget's name."""
    objects = render(values(**given))  # not the template alone, which fails when it makes nothing
    return {
        o["metadata"]["name"].removeprefix("afx-antefix-"): o["spec"]["minAvailable"]
        for o in all_of_kind(objects, "PodDisruptionBudget")
    }


def test_the_head_cannot_be_evicted_by_default() -> None:
    assert budgets() == {"head": 1}


def test_the_head_can_be_evicted_if_its_state_is_in_redis() -> None:
    kept = {"persistence": {"enabled": True}}
    assert budgets(gcsFaultTolerance={"enabled": True}, redis=kept) == {}


def test_the_head_can_be_evicted_if_its_protection_is_disabled() -> None:
    pools = {"three": {**SMALL, "replicas": 3}}
    assert budgets(pools=pools, podDisruptionBudget={"protectHead": False}) == {"pool-three": 2}


def test_at_most_one_gateway_is_evicted_at_a_time() -> None:
    assert budgets(fleet={"gateway": {"replicas": 3}})["gateway"] == 2


def test_at_most_one_engine_per_pool_is_evicted_at_a_time() -> None:
    pools = {"one": SMALL, "three": {**SMALL, "replicas": 2, "warm_replicas": 1}}
    assert budgets(pools=pools) == {"head": 1, "pool-three": 2}


def test_a_scaled_pool_is_counted_at_its_smallest() -> None:
    scaled = {**SMALL, "replicas": 5, "autoscaling": {"min_replicas": 2, "max_replicas": 9}}
    assert budgets(pools={"chat": scaled})["pool-chat"] == 1


def test_pipeline_stages_are_separate_pods() -> None:
    staged = {"model": "/m", "replicas": 2, "engine_args": {"pipeline-parallel-size": 2}}
    assert budgets(pools={"chat": staged})["pool-chat"] == 3


def test_no_disruption_budget_is_rendered_when_disabled() -> None:
    assert budgets(podDisruptionBudget={"enabled": False}) == {}


def test_a_budget_selects_the_pods_of_its_group() -> None:
    pools = {"a": {**SMALL, "replicas": 2}, "b": {**SMALL, "replicas": 2}}
    objects = render(values(fleet={"gateway": {"replicas": 2}}, pools=pools))
    cluster = of_kind(objects, "RayService")["spec"]["rayClusterConfig"]
    groups = [("head", cluster["headGroupSpec"])] + [
        (group["groupName"], group) for group in cluster["workerGroupSpecs"]
    ]
    for budget in some(all_of_kind(objects, "PodDisruptionBudget")):
        selected = [name for name, group in groups if _is_selected(budget, group)]
        group_of_name = budget["metadata"]["name"].removeprefix("afx-antefix-")
        assert selected == [group_of_name.removeprefix("pool-")]


def test_a_pod_that_never_became_ready_does_not_block_a_drain() -> None:
    (budget,) = render(values(), show_only=TEMPLATE)
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def _is_selected(budget: Object, group: Object) -> bool:
    return selects(budget["spec"]["selector"], group["template"]["metadata"]["labels"])
