"""Findings about the links between a pod's GPUs, if node labels name PCIe cards.

NVLink joins all GPUs of an SXM board. PCIe cards have bridges between pairs, or none. Source:
NVIDIA's product briefs of the A100 and the H100 PCIe.
"""

import re
from collections.abc import Iterator, Sequence

from k8s.needs.fitting import Node, against
from k8s.needs.gpu_kinds import INSTANCE_LABELS, MODEL_LABELS
from k8s.needs.needs import ClusterNeeds
from k8s.preflight.findings import PreflightFinding, some

_IN_PAIRS = 2
# Azure has A100 and H100 as cards in these: learn.microsoft.com/azure/virtual-machines/sizes
_INSTANCES = r"Standard_NC\d+(ads_A100_v4|adi?s_H100_v5)"


def link_findings(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    """Warn for each pool with tensor parallelism over more than two PCIe cards."""
    for group in needs.groups:
        if not group.is_engine:
            continue
        degree = needs.fleet.pools[group.name].tensor_parallel
        cards = [node.name for node in nodes if _has_cards(node) and not against(group, node)]
        if degree > _IN_PAIRS and cards:
            yield PreflightFinding(
                "warning",
                f"links of {group.name}",
                f"tensor_parallel_size is {degree}, and the GPUs of {some(cards)} are PCIe cards, "
                "which NVLink joins in pairs at most, so every layer waits for PCIe",
                f"set fleet.pools.{group.name}.engine_args.tensor_parallel_size to 2, as "
                "helm/antefix/values/gpus/a100-pcie.yaml does; antefix plan --gpu a100-80g-pcie "
                "estimates the speed of both",
            )


def _has_cards(node: Node) -> bool:
    model = next((node.labels[label] for label in MODEL_LABELS if label in node.labels), "")
    machine = next((node.labels[label] for label in INSTANCE_LABELS if label in node.labels), "")
    return "PCIE" in model.upper() or re.fullmatch(_INSTANCES, machine) is not None
