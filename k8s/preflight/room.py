"""Check that the cluster's nodes have room for the release, and find remedies."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from k8s.needs.fitting import NO_TERM, Fit, Node, PlacedPods, against, lacking, place
from k8s.needs.gpu_kinds import selectors_of
from k8s.needs.needs import ClusterNeeds, PodGroup
from k8s.preflight.findings import PreflightFinding, Severity, counted, some
from k8s.preflight.gpus import gpu_count, model_of
from k8s.preflight.room_later import later_findings

_BYTES = {"memory", "ephemeral-storage"}


def room_findings(
    needs: ClusterNeeds, nodes: Sequence[Node], nodes_come: bool
) -> Iterator[PreflightFinding]:
    """For every group, report whether its first pods fit. If they all fit, add `room_later`."""
    first = place([(group, group.count) for group in needs.groups], nodes)
    for placed in first.placed:
        title = f"room for {placed.group.name}"
        if not placed.missing:
            yield PreflightFinding(
                "ok",
                title,
                f"{_needs_in_words(placed.group, placed.wanted)}: on "
                f"{some([_times(node, n) for node, n in placed.on.items()])}",
            )
            continue
        why, remedy = _misfit(placed, first, nodes)
        severity: Severity = "problem"
        if nodes_come:
            severity, remedy = (
                "warning",
                f"the node autoscaler may add nodes; otherwise {remedy}",
            )
        yield PreflightFinding(
            severity, title, f"needs {_needs_in_words(placed.group, placed.wanted)}; {why}", remedy
        )
    if not first.short:
        yield from later_findings(needs, nodes, nodes_come)


def fit_as_json(needs: ClusterNeeds, nodes: Sequence[Node]) -> dict[str, Any]:
    fit = place([(group, group.count) for group in needs.groups], nodes)
    resources = sorted({group.gpu_resource for group in needs.groups if group.gpus})
    return {
        "groups": {
            p.group.name: {
                "pods": p.wanted,
                "gpus_per_pod": p.group.gpus,
                "nodes": p.on,
                "missing": p.missing,
            }
            for p in fit.placed
        },
        "gpus": [
            {
                "node": node.name,
                "model": model_of(node),
                "allocatable": gpu_count(node.allocatable, resources),
                "free": gpu_count(node.free, resources),
            }
            for node in nodes
            if gpu_count(node.allocatable, resources)
        ],
    }


def _misfit(placed: PlacedPods, fit: Fit, nodes: Sequence[Node]) -> tuple[str, str]:
    """Return why pods of a group have no node, and the remedy."""
    group = placed.group
    with_gpus = [n for n in nodes if not group.gpus or n.allocatable.get(group.gpu_resource)]
    matching = [node for node in with_gpus if not against(group, node)]
    if not matching:
        return _no_node(group, with_gpus)
    if all(lacking(group, node.allocatable) for node in matching):
        return _too_large(group, matching)
    lacks = [lacking(group, fit.left[node.name]) for node in matching]
    short = [name for name in group.requests if any(name in of for of in lacks)]
    if group.gpus and all(group.gpu_resource in of for of in lacks):
        short = [group.gpu_resource]
    by_room = sorted(matching, key=lambda n: -n.free.get(short[0], Decimal(0)))
    each = [
        f"{n.name}: {', '.join(_amount(r, n.free.get(r, Decimal(0))) for r in short)}"
        for n in by_room
    ]
    names = {node.name for node in matching}
    others = [
        p.group.name
        for p in fit.placed
        if p is not placed and names & set(p.on) and any(r in p.group.requests for r in short)
    ]
    beside = f", which {some(others)} use too" if others else ""
    return (
        f"{counted(placed.missing, 'pod')} without a node; "
        f"free on nodes that match: {some(each)}{beside}",
        _make_room(group),
    )


def _no_node(group: PodGroup, nodes: Sequence[Node]) -> tuple[str, str]:
    if not nodes:
        has = f"no node with {group.gpu_resource}" if group.gpus else "no nodes"
        plugin = "add GPU nodes, or install the device plugin on existing ones"
        return f"the cluster has {has}", plugin if group.gpus else "add nodes"
    reasons: dict[str, list[str]] = {}
    for node in nodes:
        reasons.setdefault(against(group, node), []).append(node.name)
    words = "; ".join(f"{some(names, 3)}: {reason}" for reason, names in reasons.items())
    return f"no node matches {group.settings}: {words}", _matching(group, nodes)


def _matching(group: PodGroup, nodes: Sequence[Node]) -> str:
    """Return the remedy if no node accepts the group's pods."""
    settings = _settings_for(group)
    otherwise = f"{settings}.tolerations to match the nodes' taints, or change the nodes"
    without_term = [node for node in nodes if against(group, node) == NO_TERM]
    if group.gpus and (terms := _proposed(without_term)):
        return (
            f"let a term of {settings}.affinity match {terms}, as the files in "
            f"helm/antefix/values/gpus do for A100s, or set {otherwise}"
        )
    proposed = _proposed([n for n in nodes if against(group, n).startswith("no label")])
    if not group.gpus or not proposed:
        return f"set {settings}.nodeSelector to labels of the nodes, or {otherwise}"
    return f"set {settings}.nodeSelector to {proposed}, or {otherwise}"


def _proposed(nodes: Sequence[Node]) -> str:
    """Return labels that select a GPU kind, each with the nodes that have it; empty if none do."""
    return " or ".join(f"{label} ({some(names, 3)})" for label, names in selectors_of(nodes))


def _too_large(group: PodGroup, nodes: Sequence[Node]) -> tuple[str, str]:
    most = max(n.allocatable.get(group.gpu_resource, Decimal(0)) for n in nodes)
    if most < group.gpus:
        # only a divisor is known to divide the model's attention heads too
        fitting = [n for n in range(1, int(most) + 1) if group.gpus % n == 0]
        smaller = (
            f"lower tensor_parallel_size of {group.name} to {fitting[-1]} and multiply "
            f"pipeline_parallel_size by {group.gpus // fitting[-1]}, or "
            if fitting
            else ""
        )
        return (
            f"a node has {counted(most, 'GPU')} at most, and tensor parallelism stays in one node",
            f"{smaller}add larger nodes",
        )
    lacks = [lacking(group, node.allocatable) for node in nodes]
    # the resources that every node lacks, otherwise all that any node lacks
    shown = [r for r in group.requests if all(r in of for of in lacks)] or sorted(
        {r for of in lacks for r in of}
    )
    largest = ", ".join(
        _amount(r, max(n.allocatable.get(r, Decimal(0)) for n in nodes)) for r in shown
    )
    return (
        f"the largest node that matches has {largest}",
        f"lower {_settings_for(group)}.resources.requests, or add larger nodes",
    )


def _make_room(group: PodGroup) -> str:
    if group.gpus:
        nodes = f"nodes with {counted(group.gpus, 'free GPU')} each"
        return f"free or add {nodes}, or lower fleet.pools.{group.name}.replicas"
    return f"free or add nodes, or lower {_settings_for(group)}.resources.requests"


def _settings_for(group: PodGroup) -> str:
    return f"poolPods.{group.name}" if group.settings == "enginePods" else group.settings


def _needs_in_words(group: PodGroup, pods: int) -> str:
    size = [_amount(r, group.requests[r]) for r in ("cpu", "memory") if r in group.requests]
    if group.gpus:
        size.insert(0, counted(group.gpus, "GPU") + (" on one node" if group.gpus > 1 else ""))
    return f"{counted(pods, 'pod')} of {', '.join(size)}"


def _times(node: str, pods: int) -> str:
    return node if pods == 1 else f"{node} ({pods})"


def _amount(resource: str, amount: Decimal) -> str:
    if resource in _BYTES:
        return f"{amount / 2**30:.3g} GiB {resource}"
    amount = amount.normalize()
    if resource == "cpu":
        return counted(amount, "core")
    return counted(amount, "GPU") if "gpu" in resource else f"{amount:f} {resource}"
