"""Findings about a cluster's GPUs: their kinds, their device plugin, and their driver."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from k8s.needs.fitting import Node, against, required_terms
from k8s.needs.gpu_kinds import MODEL_LABELS
from k8s.needs.needs import Amounts, ClusterNeeds
from k8s.preflight.findings import PreflightFinding, some

_GPU_PRESENT = "nvidia.com/gpu.present"
# NVIDIA's feature discovery; the second is its older name
_DRIVER_LABELS = ("nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major")
# The image has CUDA 13, which needs at least this driver:
# docs.nvidia.com/cuda/cuda-toolkit-release-notes, "CUDA Driver"
OLDEST_DRIVER = 580


def model_of(node: Node) -> str:
    """Return the GPU's name from the node's labels; empty if there is none."""
    if model := next((node.labels[label] for label in MODEL_LABELS if label in node.labels), ""):
        return model
    return "an unnamed GPU" if node.labels.get(_GPU_PRESENT) == "true" else ""


def gpu_findings(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    """Report the GPUs, and whether the device plugin offers them."""
    wanting = [group for group in needs.groups if group.gpus]
    if not wanting:
        yield PreflightFinding("ok", "GPUs", "the fleet needs none")
        return
    resources = sorted({group.gpu_resource for group in wanting})
    has = [n for n in nodes if any(n.allocatable.get(r) for r in resources)]
    hidden = [n.name for n in nodes if model_of(n) and n not in has and n.ready]
    if hidden:
        yield PreflightFinding(
            "problem" if not has else "warning",
            "device plugin",
            f"{some(hidden)}: labeled with a GPU, but no {' or '.join(resources)} is allocatable",
            "install NVIDIA's GPU operator or device plugin there, and check that its pods run: "
            "kubectl get pods -A | grep nvidia",
        )
    if not has:
        return
    by_model: dict[str, list[Node]] = {}
    for node in has:
        by_model.setdefault(model_of(node) or "unlabeled GPU", []).append(node)
    words = []
    for model, those in sorted(by_model.items()):
        each = [f"{n.name} {gpu_count(n.allocatable, resources)}" for n in those]
        free = sum(gpu_count(n.free, resources) for n in those)
        words.append(f"{model}: {some(each)} ({free} free)")
    yield PreflightFinding("ok", "GPUs", "; ".join(words))
    for group in wanting:
        chooses = group.node_selector or required_terms(group.affinity)
        if group.accelerator and not chooses and len(by_model) > 1:
            yield PreflightFinding(
                "warning",
                f"GPU of {group.name}",
                f"the cluster has {some(sorted(by_model))}, but resources.accelerator_type "
                f"{group.accelerator} does not select nodes in Kubernetes",
                f"set poolPods.{group.name}.nodeSelector, such as "
                "{nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}",
            )


def driver_findings(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    """Check that NVIDIA's driver supports the image's CUDA, if nodes report their driver."""
    wanting = [g for g in needs.groups if g.gpus and g.gpu_resource.startswith("nvidia.com/")]
    used = [
        node
        for node in nodes
        if any(node.allocatable.get(g.gpu_resource) and not against(g, node) for g in wanting)
    ]
    drivers = {node.name: _driver(node) for node in used}
    old = [f"{name} {driver}" for name, driver in drivers.items() if 0 < driver < OLDEST_DRIVER]
    known = [f"{name} {driver}" for name, driver in drivers.items() if driver]
    if old:
        yield PreflightFinding(
            "problem",
            "GPU driver",
            f"{some(old)}: older than {OLDEST_DRIVER}, which the GPU image's CUDA 13 needs",
            f"upgrade NVIDIA's driver there to {OLDEST_DRIVER} or later, with driver.version of "
            "the GPU operator or with newer node images; or exclude those nodes with "
            "enginePods.nodeSelector",
        )
    elif known:
        yield PreflightFinding("ok", "GPU driver", some(known))
    elif used:
        yield PreflightFinding(
            "note",
            "GPU driver",
            f"no label names the driver of {some(list(drivers))}; the GPU image's CUDA 13 needs "
            f"{OLDEST_DRIVER} or later",
            "check it with nvidia-smi in a pod there; NVIDIA's GPU feature discovery sets the "
            "label",
        )


def _driver(node: Node) -> int:
    """Return the driver's major version; 0 if the node's labels do not have it."""
    said = next((node.labels[label] for label in _DRIVER_LABELS if label in node.labels), "")
    return int(said) if said.isdecimal() else 0


def gpu_count(amounts: Amounts, resources: Sequence[str]) -> int:
    return int(sum(max(amounts.get(r, Decimal(0)), Decimal(0)) for r in resources))
