"""GPUs that nodes only pretend to have: Kubernetes counts them, and no program finds one.

An extended resource in a node's status is how a device plugin reports GPUs. The labels are those of
NVIDIA's feature discovery.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kubernetes.api import name_of, until
from tests.kubernetes_long.kubectl import kubectl
from tests.kubernetes_long.traffic import nodes

GPU = "nvidia.com/gpu"
A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/cuda.driver.major": "580",
}


@contextmanager
def pretended(gpus: dict[str, int]) -> Iterator[None]:
    """Let nodes have this number of A100s each."""
    try:
        for node, number in gpus.items():
            set_gpus(node, number)
        yield
    finally:
        for node in gpus:
            set_gpus(node, 0)


def set_gpus(node: str, number: int) -> None:
    """Let a node have this number of A100s; with 0 it has none and no label."""
    labels = A100 | {f"{GPU}.count": str(number)}
    words = [f"{name}={value}" if number else f"{name}-" for name, value in labels.items()]
    kubectl("label", "node", node, "--overwrite", *words)
    path = f"/status/capacity/{GPU.replace('/', '~1')}"
    change = {"op": "add", "path": path, "value": str(number)} if number else None
    patch = [change or {"op": "remove", "path": path}]
    kubectl(
        *("patch", "node", node, "--subresource=status", "--type=json"),
        *("--patch", json.dumps(patch)),
    )
    # the kubelet makes them allocatable
    until(f"{number} GPUs on {node}", lambda: _allocatable(node) == number, within_s=60)


def _allocatable(node: str) -> int:
    (found,) = (one for one in nodes() if name_of(one) == node)
    return int(found["status"]["allocatable"].get(GPU, 0))
