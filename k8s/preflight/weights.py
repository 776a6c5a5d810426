"""Findings about a pool's weights on the cluster's GPUs for it.

The checks are those of `antefix config check`, without findings that it has already reported.
"""

from collections.abc import Iterator, Sequence

from deployments.fleet.devices import OfferedGpu, devices_of
from deployments.fleet.weights_check import WeightsCheck, check_weights
from k8s.needs.fitting import Node
from k8s.needs.gpu_kinds import MODEL_LABELS, gpus_for
from k8s.needs.needs import ClusterNeeds, PodGroup
from k8s.preflight.findings import PreflightFinding, Severity


def weights_findings(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    """Yield one or more findings for each pool on GPUs."""
    groups = [group for group in needs.groups if group.is_engine and group.gpus]
    if not groups:
        return
    offered = {group.name: gpus_for(group, nodes) for group in groups}
    check, before = check_weights(needs.fleet, offered), check_weights(needs.fleet).found
    for group in groups:
        found = list(_of_pool(group, check, before))
        yield from found or [_fine(needs, group, offered[group.name])]


def _of_pool(
    group: PodGroup, check: WeightsCheck, before: Sequence[object]
) -> Iterator[PreflightFinding]:
    title = f"weights of {group.name}"
    for keys, each in check.found:
        if keys[1] == group.name and (each.refuses or (keys, each) not in before):
            severity: Severity = "problem" if each.refuses else "warning"
            value = "" if each.value is None else f" = {each.value}"
            where = f"fleet.{'.'.join(keys)}{value}"
            yield PreflightFinding(severity, title, f"{where}: {each.message}", each.remedy)
    for why, pools in check.unchecked.items():
        if f"pools.{group.name}" in pools:
            yield PreflightFinding("note", title, *_unchecked(group, why))


def _unchecked(group: PodGroup, why: str) -> tuple[str, str]:
    if not why.startswith("kernels"):
        return why, ""
    label = MODEL_LABELS[0]
    return (
        "kernels and memory not checked: no node label, nodeSelector or affinity names a known GPU",
        f"set fleet.pools.{group.name}.resources.accelerator_type, such as A100-80G, or label the "
        f"nodes with {label}",
    )


def _fine(needs: ClusterNeeds, group: PodGroup, offered: Sequence[OfferedGpu]) -> PreflightFinding:
    devices = devices_of(needs.fleet.pools[group.name], offered)
    names = " and ".join(device.name for device in devices)
    return PreflightFinding(
        "ok", f"weights of {group.name}", f"kernels, dimensions and memory fit {names}"
    )
