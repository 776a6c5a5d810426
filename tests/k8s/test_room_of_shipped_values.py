"""What preflight says of room for the presets of several nodes on a few clusters of A100s."""

from __future__ import annotations

from functools import cache

import pytest
import yaml

from deployments.fleet.fleet import Fleet
from k8s.client.cluster import Cluster
from k8s.needs.facts import gather
from k8s.needs.needs import ClusterNeeds, needs_of
from k8s.preflight.findings import Severity
from k8s.preflight.preflight import findings
from tests.helm.helm import CHART, defaults, merged, render
from tests.k8s.api import Api
from tests.k8s.asking import READY
from tests.k8s.objects import NAMESPACE, Object, node, pod

ROOM = ("room for", "growth of", "loss of a node", "GPU budget")


@cache
def needs(preset: str) -> ClusterNeeds:
    file = CHART / "values" / f"{preset}.yaml"
    values = merged(defaults(), yaml.safe_load(file.read_text()))
    return needs_of(render(file), Fleet.model_validate(values["fleet"]), values)


def nodes(*gpus: int, **more: bool) -> list[Object]:
    return [
        node(f"a100-{i}", count, cpu="256", memory="2Ti", **more)  # type: ignore[arg-type]
        for i, count in enumerate(gpus, 1)
    ]


def findings_about_room(*objects: Object, preset: str = "multi-node-a100") -> dict[str, Severity]:
    """Findings that are not fine, by their titles."""
    with Api(*READY, *objects) as api:
        facts = gather(Cluster(str(api.kubeconfig)), needs(preset), NAMESPACE, "antefix")
    found = findings(facts, needs(preset))
    return {
        one.title: one.severity
        for one in found
        if one.title.startswith(ROOM) and one.severity != "ok"
    }


UPGRADE: dict[str, Severity] = {"room for an upgrade": "warning"}


def test_two_nodes_with_eight_gpus_hold_the_initial_replicas() -> None:
    assert findings_about_room(*nodes(8, 8)) == {
        "growth of llama-8b": "note",
        "loss of a node and llama-8b": "note",
        "GPU budget": "warning",
        "room for a rollout of llama-70b": "warning",
        **UPGRADE,
    }


@pytest.mark.parametrize("gpus", [(8, 8, 8), (12, 12)], ids=str)
def test_24_gpus_hold_everything_except_a_second_cluster(gpus: tuple[int, ...]) -> None:
    assert findings_about_room(*nodes(*gpus)) == UPGRADE


def test_four_nodes_with_eight_gpus_also_hold_a_second_cluster() -> None:
    assert findings_about_room(*nodes(8, 8, 8, 8)) == {}


def test_four_gpus_used_by_another_pod_leave_none_for_the_small_pool() -> None:
    assert findings_about_room(*nodes(8, 8), pod("other", "a100-2", gpus=4)) == {
        "room for llama-8b": "problem"
    }


def test_gpus_spread_over_nodes_do_not_fit_engines_with_four_gpus() -> None:
    others = [pod(f"other-{i}", f"a100-{i}", gpus=5) for i in (1, 2, 3)]
    assert findings_about_room(*nodes(8, 8, 8, 8), *others) == {"room for llama-70b": "problem"}


def test_an_unschedulable_node_provides_no_room() -> None:
    cordoned = node("a100-9", 8, cordoned=True)
    assert "room for llama-70b" in findings_about_room(*nodes(8), cordoned)


@pytest.mark.parametrize(
    ("preset", "gpus"), [("two-nodes-a100", (8, 8)), ("three-nodes-a100", (4, 4, 4))], ids=str
)
def test_the_nodes_of_a_preset_have_room_for_growth_a_lost_node_and_a_second_cluster(
    preset: str, gpus: tuple[int, ...]
) -> None:
    assert findings_about_room(*nodes(*gpus), preset=preset) == {}


@pytest.mark.parametrize(
    ("preset", "gpus"), [("two-nodes-a100", (8,)), ("three-nodes-a100", (4, 4))], ids=str
)
def test_the_other_nodes_have_room_for_the_initial_replicas_if_a_node_is_lost(
    preset: str, gpus: tuple[int, ...]
) -> None:
    found = findings_about_room(*nodes(*gpus), preset=preset)
    assert found["GPU budget"] == "warning"
    assert "problem" not in found.values()
