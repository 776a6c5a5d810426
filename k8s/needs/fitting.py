"""Check whether pods fit on nodes: first fit, largest first, like a scheduler at its best.

It respects node selectors, required node affinity, taints, and requests of GPUs, cores, memory and
the number of pods. It ignores preferences, anti-affinity and volumes' zones. Pods that do not fit
here fit nowhere; pods that fit may still be placed worse.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from k8s.needs.needs import Amounts, Object, PodGroup, amounts, requests_of, total

# The reason for a node that matches no term of the required node affinity.
NO_TERM = "not what nodeAffinity requires"
_BLOCKING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class Node:
    """A node. `free` is the allocatable amount minus the requests of its pods."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    allocatable: Amounts
    free: Amounts
    ready: bool = True


@dataclass
class PlacedPods:
    """Placement of a group's pods: number of pods by name of the node."""

    group: PodGroup
    wanted: int
    on: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        return self.wanted - sum(self.on.values())


@dataclass(frozen=True)
class Fit:
    """The placement of every group, and the rest of each node after it."""

    placed: tuple[PlacedPods, ...]
    left: Mapping[str, Amounts]

    @property
    def short(self) -> list[str]:
        """Return the groups that have pods without a node."""
        return [placed.group.name for placed in self.placed if placed.missing]


def nodes_of(
    nodes: Sequence[Object], pods: Sequence[Object], leaving: tuple[str, str] | None = None
) -> list[Node]:
    """Return the nodes with their free resources.

    Pods of the release `leaving` (namespace and name) and pods with a priority below 0 do not
    count, because they make room.
    """
    used: dict[str, list[Amounts]] = {}
    for pod in pods:
        spec, metadata = pod["spec"], pod["metadata"]
        release = metadata.get("labels", {}).get("app.kubernetes.io/instance")
        ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        gives_way = spec.get("priority", 0) < 0
        if not (ended or gives_way or (metadata["namespace"], release) == leaving):
            used.setdefault(spec.get("nodeName", ""), []).append(requests_of(spec))
    return [_node(node, used.get(node["metadata"]["name"], [])) for node in nodes]


def place(groups: Sequence[tuple[PodGroup, int]], nodes: Sequence[Node]) -> Fit:
    """Place each group with a number of pods, in the given order."""
    left = {node.name: dict(node.free) for node in nodes}
    placed = tuple(PlacedPods(group, count) for group, count in groups)
    # large groups before small ones, and groups with few possible nodes before those with many
    for one in sorted(placed, key=lambda p: _size(p.group, nodes)):
        for node in _takers(one.group, nodes):
            room = left[node.name]
            while one.missing and not lacking(one.group, room):
                for name, amount in one.group.requests.items():
                    room[name] -= amount
                one.on[node.name] = one.on.get(node.name, 0) + 1
    return Fit(placed, left)


def lacking(group: PodGroup, room: Amounts) -> list[str]:
    """Return the resources of which a pod of the group requests more than is free."""
    return [name for name, asked in group.requests.items() if asked > room.get(name, Decimal(0))]


def against(group: PodGroup, node: Node) -> str:
    """Return why no pod of the group may run on the node, regardless of free resources; empty: it
    may."""
    if not node.ready:
        return "not ready, or cordoned"
    for label, value in group.node_selector.items():
        if node.labels.get(label) != value:
            return f"no label {label}={value}"
    terms = required_terms(group.affinity)
    if terms and not any(_term_matches(term, node) for term in terms):
        return NO_TERM
    for taint in node.taints:
        if taint["effect"] in _BLOCKING and not any(
            _tolerates(t, taint) for t in group.tolerations
        ):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint['key']}{value}:{taint['effect']}"
    return ""


def required_terms(affinity: Object) -> list[Object]:
    """Return the node selector terms of which a node must match one; none if any node will do."""
    rules = affinity.get("nodeAffinity") or {}
    required = rules.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: list[Object] = required.get("nodeSelectorTerms", [])
    return terms


def _node(node: Object, used: list[Amounts]) -> Node:
    spec = node.get("spec", {})
    conditions = node["status"].get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    allocatable = amounts(node["status"].get("allocatable"))
    taken = total(used)
    return Node(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels", {}),
        taints=tuple(spec.get("taints", ())),
        allocatable=allocatable,
        free={name: amount - taken.get(name, 0) for name, amount in allocatable.items()},
        ready=ready and not spec.get("unschedulable", False),
    )


def _takers(group: PodGroup, nodes: Sequence[Node]) -> Iterator[Node]:
    """Return the fullest nodes first, so that nodes stay empty for groups that need a whole one."""
    resource = group.gpu_resource if group.gpus else "memory"
    fitting = [node for node in nodes if not against(group, node)]
    # pods without GPUs prefer nodes without GPUs, because of taints and prices
    yield from sorted(
        fitting, key=lambda n: (not group.gpus and _gpus(n) > 0, n.free.get(resource, 0), n.name)
    )


def _gpus(node: Node) -> Decimal:
    return sum((a for name, a in node.allocatable.items() if "gpu" in name), Decimal(0))


def _size(group: PodGroup, nodes: Sequence[Node]) -> tuple[Any, ...]:
    choices = sum(not against(group, node) for node in nodes)
    return -group.gpus, choices, -group.requests.get("memory", Decimal(0))


def _term_matches(term: Object, node: Node) -> bool:
    by_field = {"metadata.name": node.name}
    return all(expression_holds(e, node.labels) for e in term.get("matchExpressions", [])) and all(
        expression_holds(e, by_field) for e in term.get("matchFields", [])
    )


def expression_holds(expression: Object, labels: Mapping[str, str]) -> bool:
    """Return whether labels match a requirement of a selector of nodes or of labels."""
    there = labels.get(expression["key"])
    values = expression.get("values", [])
    match expression["operator"]:
        case "In":
            return there in values
        case "NotIn":
            return there not in values
        case "Exists":
            return there is not None
        case "DoesNotExist":
            return there is None
        case "Gt":
            return there is not None and int(there) > int(values[0])
        case _:
            return there is not None and int(there) < int(values[0])


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (
        taint["key"],
        taint.get("value", ""),
    )
