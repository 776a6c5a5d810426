"""What preflight finds of NVIDIA's driver."""

from __future__ import annotations

import pytest

from tests.k8s.asking import READY, finding_titled, llama, preflight_findings, warnings_and_problems
from tests.k8s.objects import Object, node

NEW, OLD = "nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major"


def gpus(name: str, labels: dict[str, str]) -> Object:
    made = node(name, 8)
    del made["metadata"]["labels"][NEW]
    made["metadata"]["labels"] |= labels
    return made


@pytest.mark.parametrize(
    "labels, severity, seen",
    [
        ({NEW: "580"}, "ok", "a100-1 580"),
        ({OLD: "590"}, "ok", "a100-1 590"),
        ({NEW: "570", OLD: "570"}, "problem", "a100-1 570: older than 580, which the GPU image"),
        ({}, "note", "no label names the driver of a100-1"),
    ],
    ids=["enough", "an older label", "too old", "unknown"],
)
def test_a_driver_must_support_the_cuda_version_of_the_image(
    labels: dict[str, str], severity: str, seen: str
) -> None:
    finding = finding_titled(preflight_findings(*READY, gpus("a100-1", labels)), "GPU driver")
    assert finding.severity == severity
    assert seen in finding.seen


def test_a_node_without_engines_may_have_any_driver() -> None:
    old = gpus("t4-1", {NEW: "535", "kind": "old"})
    new = gpus("a100-1", {NEW: "580", "kind": "new"})
    values = {"enginePods": {"nodeSelector": {"kind": "new"}}}
    assert (
        finding_titled(preflight_findings(*READY, old, new, values=values), "GPU driver").severity
        == "ok"
    )
    assert "t4-1 535" in finding_titled(preflight_findings(*READY, old, new), "GPU driver").seen


@pytest.mark.parametrize("values", [{}, {"enginePods": {"gpuResource": "amd.com/gpu"}}])
def test_engines_without_nvidia_gpus_need_no_driver(values: Object) -> None:
    pools = {"llama": llama(**({} if values else {"resources": {"gpus": 0}}))}
    assert "GPU driver" not in warnings_and_problems(
        preflight_findings(*READY, gpus("x", {NEW: "1"}), pools=pools, values=values)
    )
