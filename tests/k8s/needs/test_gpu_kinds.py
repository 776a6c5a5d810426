"""Which GPU the labels of nodes and nodeSelectors name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from deployments.fleet.devices import OfferedGpu
from k8s.needs.fitting import Node
from k8s.needs.gpu_kinds import gpu_of, gpus_for, selectors_of
from k8s.needs.needs import PodGroup
from tests.shipped import PLANNED_FILES, VALUES_FILES, values_of

PRODUCT = "nvidia.com/gpu.product"
GKE = "cloud.google.com/gke-accelerator"
MACHINE = "node.kubernetes.io/instance-type"
KARPENTER = "karpenter.k8s.aws/instance-gpu"
GPU = "nvidia.com/gpu"

KINDS: list[tuple[Mapping[str, str], str]] = [
    ({PRODUCT: "NVIDIA-A100-SXM4-80GB"}, "A100-80G"),
    ({PRODUCT: "NVIDIA-A100-SXM4-40GB"}, "A100-40G"),
    ({PRODUCT: "NVIDIA-A100-80GB-PCIe"}, "A100-80G"),
    ({PRODUCT: "NVIDIA-A100-PCIE-40GB"}, "A100-40G"),
    ({PRODUCT: "A100-SXM4-40GB"}, "A100-40G"),
    ({PRODUCT: "NVIDIA-A100-SXM4-80GB-SHARED"}, "A100-80G"),
    ({PRODUCT: "NVIDIA-H100-80GB-HBM3"}, "H100"),
    ({PRODUCT: "NVIDIA-H200"}, "H200"),
    ({PRODUCT: "NVIDIA-L4"}, "L4"),
    ({PRODUCT: "NVIDIA-L40S"}, "L40S"),
    ({PRODUCT: "NVIDIA-A10G"}, "A10G"),
    ({PRODUCT: "Tesla-T4"}, "T4"),
    ({PRODUCT: "Tesla-V100-SXM2-16GB"}, "V100"),
    ({GKE: "nvidia-tesla-a100"}, "A100-40G"),
    ({GKE: "nvidia-a100-80gb"}, "A100-80G"),
    ({GKE: "nvidia-h100-mega-80gb"}, "H100"),
    ({GKE: "nvidia-h200-141gb"}, "H200"),
    ({GKE: "nvidia-l4"}, "L4"),
    ({f"{KARPENTER}-name": "a100"}, "A100"),
    ({f"{KARPENTER}-name": "l40s"}, "L40S"),
    ({"k8s.amazonaws.com/accelerator": "nvidia-tesla-v100"}, "V100"),
    ({"accelerator": "A100-80GB"}, "A100-80G"),
    ({MACHINE: "p4d.24xlarge"}, "A100-40G"),
    ({MACHINE: "p4de.24xlarge"}, "A100-80G"),
    ({MACHINE: "p5.48xlarge"}, "H100"),
    ({MACHINE: "p5en.48xlarge"}, "H200"),
    ({MACHINE: "g6e.12xlarge"}, "L40S"),
    ({MACHINE: "a2-highgpu-8g"}, "A100-40G"),
    ({MACHINE: "a2-ultragpu-8g"}, "A100-80G"),
    ({MACHINE: "Standard_ND96asr_v4"}, "A100-40G"),
    ({MACHINE: "Standard_ND96amsr_A100_v4"}, "A100-80G"),
    ({MACHINE: "Standard_NC96ads_A100_v4"}, "A100-80G"),
]
UNKNOWN: list[Mapping[str, str]] = [
    {},
    {"kind": "gpu"},
    {PRODUCT: "NVIDIA-RTX-A6000"},
    {PRODUCT: "NVIDIA-A10"},
    {PRODUCT: "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"},
    {"amd.com/gpu.product-name": "AMD_Instinct_MI300X"},
    {MACHINE: "m7i.4xlarge"},
    {"kubernetes.azure.com/accelerator": "nvidia"},
]


def a_node(name: str, labels: Mapping[str, str], gpus: int = 8) -> Node:
    room = {GPU: Decimal(gpus)} if gpus else {}
    return Node(name, labels, (), room, room)


GROUP = PodGroup("llama", "enginePods", 1, 1, {}, {}, gpu_resource=GPU, gpus=1, is_engine=True)


@pytest.mark.parametrize(("labels", "kind"), KINDS, ids=str)
def test_labels_name_a_gpu(labels: Mapping[str, str], kind: str) -> None:
    found = gpu_of(labels)
    assert found is not None and found.accelerator == kind


@pytest.mark.parametrize("labels", UNKNOWN, ids=str)
def test_an_unknown_gpu_is_not_guessed(labels: Mapping[str, str]) -> None:
    assert gpu_of(labels) is None


def test_a_label_gives_the_memory_of_a_slice() -> None:
    product = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    found = gpu_of({PRODUCT: product, "nvidia.com/gpu.memory": "9856"})
    assert found == OfferedGpu("A100-80G", product, 9856 << 20)


def test_a_pools_gpus_are_those_of_the_nodes_that_take_its_pods() -> None:
    large, small = {PRODUCT: "NVIDIA-A100-SXM4-80GB"}, {PRODUCT: "NVIDIA-A100-SXM4-40GB"}
    nodes = [a_node("a", large), a_node("b", small), a_node("c", {PRODUCT: "Tesla-T4"}, gpus=0)]
    assert [gpu.accelerator for gpu in gpus_for(GROUP, nodes)] == ["A100-80G", "A100-40G"]
    chosen = replace(GROUP, node_selector=small)
    assert [gpu.accelerator for gpu in gpus_for(chosen, nodes)] == ["A100-40G"]


def test_without_such_a_node_the_node_selector_names_the_gpu() -> None:
    chosen = replace(GROUP, node_selector={MACHINE: "p4de.24xlarge"})
    assert [gpu.accelerator for gpu in gpus_for(chosen, [])] == ["A100-80G"]


def test_one_node_with_an_unknown_gpu_makes_the_gpu_of_the_pool_unknown() -> None:
    nodes = [a_node("a", {PRODUCT: "Tesla-T4"}), a_node("b", {})]
    assert gpus_for(GROUP, nodes) == ()


def test_selectors_are_proposed_from_the_labels_that_nodes_have() -> None:
    small = {PRODUCT: "NVIDIA-A100-SXM4-40GB", MACHINE: "p4d.24xlarge"}
    nodes = [a_node("a", small), a_node("b", small), a_node("c", {MACHINE: "g6.2xlarge"})]
    assert dict(selectors_of([*nodes, a_node("d", {})])) == {
        "{nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB}": ["a", "b"],
        "{node.kubernetes.io/instance-type: g6.2xlarge}": ["c"],
    }


@pytest.mark.parametrize("file", PLANNED_FILES, ids=lambda file: file.stem)
def test_planned_values_choose_nodes_with_the_gpu_that_they_are_planned_for(file: Path) -> None:
    group = replace(GROUP, affinity=values_of(file)["enginePods"]["affinity"])
    named = file.stem.rpartition("-")[2].upper()
    assert {gpu.accelerator for gpu in gpus_for(group, [])} == {named}


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda file: file.stem)
def test_the_node_selectors_that_ship_name_a_gpu_that_is_known(file: object) -> None:
    values = values_of(file)  # type: ignore[arg-type]
    sections = [values.get("enginePods") or {}, *(values.get("poolPods") or {}).values()]
    selectors = [s["nodeSelector"] for s in sections if "nodeSelector" in s]
    assert all(gpu_of(selector) for selector in selectors)
