"""The GPU kind of a node, or of the nodes that a pod selects, from labels, by Ray's name for it.

    nvidia.com/gpu.product               NVIDIA's feature discovery: the name in nvidia-smi
    cloud.google.com/gke-accelerator     GKE
    karpenter.k8s.aws/instance-gpu-name  Karpenter on AWS
    k8s.amazonaws.com/accelerator        EKS, set by an administrator for the cluster autoscaler
    accelerator                          set by an administrator
    node.kubernetes.io/instance-type     AWS, Google Cloud and Azure, by their lists of machines

A GPU without any of these labels is unknown.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from deployments.fleet.devices import OfferedGpu
from k8s.needs.fitting import Node, against, required_terms
from k8s.needs.needs import PodGroup

Labels = Mapping[str, str]

_GKE = "cloud.google.com/gke-accelerator"
# Labels with a node's GPU; the first that is set counts.
MODEL_LABELS = (
    "nvidia.com/gpu.product",
    _GKE,
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "amd.com/gpu.product-name",
    "accelerator",
)
INSTANCE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
# MiB of one GPU, as its driver reports them
_MEMORY_LABELS = ("nvidia.com/gpu.memory", "karpenter.k8s.aws/instance-gpu-memory")
_MIB = 1 << 20

# Words of a product's name. A second word distinguishes the two kinds of A100.
_KINDS = ("GB300", "GB200", "B300", "B200", "H200", "H100", "H20", "L40S", "L4", "A10G")
_OLDER_KINDS = ("T4", "V100", "P100", "P4", "K80")
# GKE's name of the smaller A100 is older than the larger A100
_GKE_A100_40 = "nvidia-tesla-a100"

# docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, cloud.google.com/compute/docs/gpus,
# learn.microsoft.com/azure/virtual-machines/sizes/overview
_INSTANCES: tuple[tuple[str, str], ...] = (
    (r"p3(dn)?\.", "V100"),
    (r"p4d\.", "A100-40G"),
    (r"p4de\.", "A100-80G"),
    (r"p5\.", "H100"),
    (r"p5en?\.", "H200"),
    (r"p6-b200\.", "B200"),
    (r"g4dn\.", "T4"),
    (r"g5\.", "A10G"),
    (r"g6\.", "L4"),
    (r"g6e\.", "L40S"),
    (r"a2-(highgpu|megagpu)-", "A100-40G"),
    (r"a2-ultragpu-", "A100-80G"),
    (r"a3-(highgpu|megagpu|edgegpu)-", "H100"),
    (r"a3-ultragpu-", "H200"),
    (r"a4-highgpu-", "B200"),
    (r"g2-standard-", "L4"),
    (r"Standard_ND96asr(_A100)?_v4", "A100-40G"),
    (r"Standard_ND96am?sr?_A100_v4", "A100-80G"),
    (r"Standard_NC(24|48|96)ads_A100_v4", "A100-80G"),
    (r"Standard_ND96isr_H100_v5", "H100"),
    (r"Standard_ND96isr_H200_v5", "H200"),
    (r"Standard_NC\d+as_T4_v3", "T4"),
    (r"Standard_NC\d+r?s_v3", "V100"),
)


def gpu_of(labels: Labels) -> OfferedGpu | None:
    """Return the GPU that these labels name; None if they name no known GPU."""
    for label in MODEL_LABELS:
        if label in labels:
            kind = _kind_of(label, labels[label])
            return _offered(kind, labels[label], labels) if kind else None
    for label in INSTANCE_LABELS:
        for machine, kind in _INSTANCES:
            if re.match(machine, labels.get(label, "")):
                return OfferedGpu(kind, labels[label])
    return None


def gpus_for(group: PodGroup, nodes: Sequence[Node]) -> tuple[OfferedGpu, ...]:
    """Return the GPUs of the nodes on which the group's pods may run.

    Without such nodes, return those that its nodeSelector or required node affinity names. Empty if
    one of them is unknown.
    """
    may = [n for n in nodes if n.allocatable.get(group.gpu_resource) and not against(group, n)]
    named = list(_named_by(group))
    found = [gpu_of(node.labels) or (named[0] if len(named) == 1 else None) for node in may]
    found = found or named
    known = tuple(gpu for gpu in dict.fromkeys(found) if gpu is not None)
    return known if None not in found else ()


def _named_by(group: PodGroup) -> Iterator[OfferedGpu | None]:
    """Return the GPU of the nodeSelector, or of each affinity term; None if one names none."""
    chosen = gpu_of(group.node_selector)
    terms = required_terms(group.affinity)
    if chosen or not terms:
        yield chosen
        return
    for term in terms:
        wanted = [
            (of["key"], value)
            for of in term.get("matchExpressions", ())
            if of["operator"] == "In" and of["key"] in (*MODEL_LABELS, *INSTANCE_LABELS)
            for value in of["values"]
        ]
        yield from (gpu_of({key: value}) for key, value in wanted or [("", "")])


def selectors_of(nodes: Sequence[Node]) -> Iterator[tuple[str, list[str]]]:
    """Return node selectors that select one kind of GPU, as YAML, each with the names of its
    nodes."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        labels = (label for label in (*MODEL_LABELS, *INSTANCE_LABELS) if label in node.labels)
        if label := next(labels, ""):
            found.setdefault(f"{{{label}: {node.labels[label]}}}", []).append(node.name)
    yield from found.items()


def _kind_of(label: str, value: str) -> str:
    if label == _GKE and value == _GKE_A100_40:
        return "A100-40G"
    words = re.split(r"[^A-Z0-9]+", value.upper())
    if "A100" in words:
        return next((f"A100-{size}G" for size in (40, 80) if f"{size}GB" in words), "A100")
    return next((kind for kind in (*_KINDS, *_OLDER_KINDS) if kind in words), "")


def _offered(kind: str, called: str, labels: Labels) -> OfferedGpu | None:
    memory = next((labels[label] for label in _MEMORY_LABELS if label in labels), "")
    if memory.isdecimal():
        return OfferedGpu(kind, called, int(memory) * _MIB)
    # a MIG slice, whose size only that label gives
    return None if "-MIG-" in called.upper() else OfferedGpu(kind, called)
