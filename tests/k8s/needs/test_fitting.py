"""Properties of placing pods on nodes, whatever the pods and the nodes."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from k8s.needs.fitting import Node, against, lacking, place
from k8s.needs.needs import PodGroup

GPU = "nvidia.com/gpu"
KINDS = st.sampled_from(["a100", "l4"])


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    made = []
    for i in range(draw(st.integers(0, 4))):
        room = {
            "cpu": Decimal(draw(st.integers(0, 16))),
            "pods": Decimal(draw(st.integers(0, 8))),
            GPU: Decimal(draw(st.integers(0, 8))),
        }
        made.append(Node(f"n{i}", {"kind": draw(KINDS)}, (), room, room, draw(st.booleans())))
    return made


@st.composite
def groups(draw: st.DrawFn) -> list[tuple[PodGroup, int]]:
    made = []
    for i in range(draw(st.integers(0, 4))):
        gpus = draw(st.integers(0, 4))
        requests = {"cpu": Decimal(draw(st.integers(0, 4))), "pods": Decimal(1)}
        requests |= {GPU: Decimal(gpus)} if gpus else {}
        selector = draw(st.none() | KINDS)
        group = PodGroup(
            name=f"g{i}",
            settings="enginePods",
            count=1,
            most=1,
            requests=requests,
            limits={},
            gpu_resource=GPU,
            gpus=gpus,
            node_selector={"kind": selector} if selector else {},
        )
        made.append((group, draw(st.integers(0, 6))))
    return made


@given(groups(), nodes())
def test_no_node_gets_more_than_its_capacity_or_a_pod_that_it_may_not_run(
    groups: list[tuple[PodGroup, int]], nodes: list[Node]
) -> None:
    fit = place(groups, nodes)
    by_name = {node.name: node for node in nodes}
    for name, left in fit.left.items():
        assert all(amount >= 0 for amount in left.values())
        for resource, free in by_name[name].free.items():
            taken = sum(
                placed.group.requests.get(resource, 0) * placed.on.get(name, 0)
                for placed in fit.placed
            )
            assert left[resource] == free - taken
    for placed in fit.placed:
        assert not any(against(placed.group, by_name[name]) for name in placed.on)


@given(groups(), nodes())
def test_a_pod_is_left_over_only_when_no_node_has_room_for_it(
    groups: list[tuple[PodGroup, int]], nodes: list[Node]
) -> None:
    fit = place(groups, nodes)
    assert [(p.group, p.wanted) for p in fit.placed] == groups
    for placed in fit.placed:
        assert placed.missing >= 0
        if placed.missing:
            open_to_it = [node for node in nodes if not against(placed.group, node)]
            assert all(lacking(placed.group, fit.left[node.name]) for node in open_to_it)
