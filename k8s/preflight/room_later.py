"""Check that the nodes have room for later states of a release: growth, changes, or the loss of a
node."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from k8s.needs.fitting import Node, PlacedPods, against, place
from k8s.needs.needs import ClusterNeeds, PodGroup, surge_pods
from k8s.preflight.findings import PreflightFinding, Severity, counted, some
from k8s.preflight.gpus import gpu_count

Counts = Mapping[str, int]


def later_findings(
    needs: ClusterNeeds, nodes: Sequence[Node], nodes_come: bool
) -> Iterator[PreflightFinding]:
    """Report on a release whose first pods fit."""
    if not nodes_come:
        yield from _growth(needs, nodes)
        yield from _lost_node(needs, nodes)
    severity: Severity = "note" if nodes_come else "warning"
    yield from _budget(needs, nodes, severity)
    yield from _rollout(needs, nodes, severity)
    yield from _upgrade(needs, nodes, severity)


def most_at_once(groups: Sequence[PodGroup], gpu_budget: float | None) -> Iterator[Counts]:
    """Return the pods of each group at full growth.

    If the budget does not allow all, return one case per pool, in which that pool has grown first.
    """
    most = {group.name: group.most for group in groups}
    if gpu_budget is None or _gpus(groups, most) <= gpu_budget:
        yield most
        return
    growing = [group for group in groups if group.gpus and group.most > group.least]
    for first in growing:
        counts = most | {group.name: group.least for group in growing}
        for group in (first, *growing):
            free = gpu_budget - _gpus(groups, counts)
            fits = max(0, int(free // (group.gpus * group.pods_per_replica)))
            grown = counts[group.name] + fits * group.pods_per_replica
            counts[group.name] = min(group.most, grown)
        yield counts


def _gpus(groups: Sequence[PodGroup], counts: Counts) -> int:
    return sum(group.gpus * counts[group.name] for group in groups)


def _budget(
    needs: ClusterNeeds, nodes: Sequence[Node], severity: Severity
) -> Iterator[PreflightFinding]:
    """Report a GPU budget that lets pools grow beyond the GPUs that engines may use."""
    budget = needs.fleet.gpu_budget
    engines = [group for group in needs.groups if group.gpus]
    resources = sorted({group.gpu_resource for group in engines})
    usable = [node for node in nodes if not all(against(group, node) for group in engines)]
    gpus = sum(gpu_count(node.allocatable, resources) for node in usable)
    most = _gpus(engines, {group.name: group.most for group in engines})
    if budget is not None and min(budget, most) > gpus:
        yield PreflightFinding(
            severity,
            "GPU budget",
            f"fleet.gpu_budget is {budget:g}, but engines can use {counted(gpus, 'GPU')} of the "
            "cluster; one pool may grow until pods of another wait for GPUs that do not exist",
            f"set fleet.gpu_budget: {gpus}, or add {counted(ceil(budget) - gpus, 'GPU')}",
        )


def _growth(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    budget, short = needs.fleet.gpu_budget, dict[str, PlacedPods]()
    for counts in most_at_once(needs.groups, budget):
        for placed in _placed(needs, counts, nodes):
            worst = short.setdefault(placed.group.name, placed)
            if placed.missing > worst.missing:
                short[placed.group.name] = placed
    shared = "fleet.gpu_budget or " if budget is not None else ""
    for name, placed in short.items():
        if placed.missing:
            yield PreflightFinding(
                "note",
                f"growth of {name}",
                f"autoscaling may request {placed.wanted} pods, but only "
                f"{placed.wanted - placed.missing} fit while the other pools grow too",
                f"add nodes, or lower {shared}fleet.pools.{name}.autoscaling.max_replicas",
            )


def _lost_node(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    """Report pools that fall below their minimum number of engines when one node is lost."""
    engines = [group for group in needs.groups if group.gpus]
    with_gpus = [
        node
        for node in nodes
        if node.ready and any(node.allocatable.get(group.gpu_resource) for group in engines)
    ]
    if len(with_gpus) < 2:
        return
    least = {group.name: group.least for group in needs.groups}
    lost: dict[str, list[str]] = {}
    for node in with_gpus:
        rest = [other for other in nodes if other is not node]
        for placed in _placed(needs, least, rest):
            if placed.missing and placed.group.gpus:
                lost.setdefault(placed.group.name, []).append(node.name)
    for name, names in lost.items():
        scaled = needs.fleet.pools[name].autoscaling is not None
        key = "autoscaling.min_replicas" if scaled else "replicas"
        yield PreflightFinding(
            "note",
            f"loss of a node and {name}",
            f"if {'one of ' if len(names) > 1 else ''}{some(names)} is lost, the other nodes have "
            f"no room for {counted(least[name], 'pod')}, the minimum of {name}; some pods would "
            "wait for the node",
            f"add a node, or lower fleet.pools.{name}.{key}",
        )


def _rollout(
    needs: ClusterNeeds, nodes: Sequence[Node], severity: Severity
) -> Iterator[PreflightFinding]:
    percent = needs.fleet.surge_percent
    for group in needs.groups:
        extra = surge_pods(group, group.count, percent) if group.is_engine else 0
        counts = {other.name: other.count for other in needs.groups}
        counts[group.name] += extra
        if extra and any(placed.missing for placed in _placed(needs, counts, nodes)):
            pods = "1 pod" if extra == 1 else f"{extra} pods"
            yield PreflightFinding(
                severity,
                f"room for a rollout of {group.name}",
                f"fleet.surge_percent {percent} starts {pods} more before it stops an old one, but "
                "there is no room; a rollout would wait, while the old engines serve",
                "keep that much free, or set fleet.surge_percent: 0, which stops an old engine "
                "before it starts a new one",
            )


def _upgrade(
    needs: ClusterNeeds, nodes: Sequence[Node], severity: Severity
) -> Iterator[PreflightFinding]:
    if not needs.twice:
        return
    counts = {g.name: g.count * 2 if g.in_ray else g.count for g in needs.groups}
    short = [p.group.name for p in _placed(needs, counts, nodes) if p.missing]
    if short:
        yield PreflightFinding(
            severity,
            "room for an upgrade",
            "a change of the pod spec starts a second cluster, but there is no room for a second "
            f"{some(short)}; the upgrade would wait, while the old cluster serves",
            "keep spare nodes for it, or set upgrade.strategy: None and delete the old RayCluster "
            "by hand",
        )


def _placed(needs: ClusterNeeds, counts: Counts, nodes: Sequence[Node]) -> tuple[PlacedPods, ...]:
    return place([(group, counts[group.name]) for group in needs.groups], nodes).placed
