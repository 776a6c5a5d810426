"""The chart's values, as sizes, platforms and GPUs combine, against nodes as clouds list them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.k8s.asking import (
    READY,
    finding_titled,
    preflight_findings_of_values,
    warnings_and_problems,
)
from tests.k8s.kinds import crd
from tests.k8s.objects import (
    NAMESPACE,
    RAYSERVICES,
    Object,
    named,
    namespace,
    node,
    operator,
    secret,
    storage_class,
)
from tests.shipped import GPU_KINDS, PLATFORMS, SIZES, combined

MACHINES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("machines.yaml").read_text())
MONITORING = (
    crd("monitoring.coreos.com", "PodMonitor", "v1"),
    crd("monitoring.coreos.com", "PrometheusRule", "v1"),
)
# What docs/kubernetes/platforms.md has an administrator make.
THERE: dict[str, tuple[Object, ...]] = {
    "eks": (
        storage_class("gp3", "ebs.csi.aws.com", default=True),
        storage_class("efs", "efs.csi.aws.com", parameters={"uid": "1000", "gid": "1000"}),
        named("storage.k8s.io/v1", "CSIDriver", "efs.csi.aws.com", spec={}),
    ),
    "gke": (
        storage_class("standard-rwo", "pd.csi.storage.gke.io", default=True),
        storage_class("premium-rwx", "filestore.csi.storage.gke.io"),
    ),
    "aks": (
        storage_class("default", "disk.csi.azure.com", default=True),
        storage_class(
            "azurefile-csi-nfs",
            "file.csi.azure.com",
            parameters={"protocol": "nfs", "mountPermissions": "0777"},
        ),
        named("storage.k8s.io/v1", "CSIDriver", "file.csi.azure.com", spec={}),
    ),
    "bare-metal": (
        storage_class("local-path", "rancher.io/local-path", default=True),
        named("networking.k8s.io/v1", "IngressClass", "nginx", spec={"controller": "nginx"}),
        named("node.k8s.io/v1", "RuntimeClass", "nvidia", handler="nvidia"),
        secret("llm-tls", "tls.crt", "tls.key", type="kubernetes.io/tls"),
    ),
}
PRIVILEGED = namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "privileged"})


class Install(NamedTuple):
    """A size on a platform, with a file of gpus/ or none, on `nodes` machines of the GPU `fits`."""

    size: str
    platform: str
    machine: str
    nodes: int = 1
    gpu: str = ""
    fits: str = "A100-80G"

    @property
    def values(self) -> Object:
        gpu = (GPU_KINDS[self.gpu],) if self.gpu else ()
        return combined((SIZES[self.size], PLATFORMS[self.platform], *gpu))

    def objects(self) -> list[Object]:
        cpus = [node(f"cpu-{i}", cpu="32", memory="128Gi") for i in range(3)]
        gpus = [_node(f"gpu-{i}", MACHINES[self.machine]) for i in range(self.nodes)]
        there = THERE[self.platform]
        return [RAYSERVICES, operator(), PRIVILEGED, *MONITORING, *there, *cpus, *gpus]


def _node(name: str, machine: Any) -> Object:
    made = node(name, cpu=machine["cpu"], memory=machine["memory"], taints=machine["taints"])
    made["metadata"]["labels"] |= machine["labels"]
    made["status"]["allocatable"]["nvidia.com/gpu"] = str(machine["gpus"])
    return made


INSTALLS = [
    Install("four-gpus", "gke", "a2-ultragpu-4g"),
    Install("four-gpus", "gke", "a2-highgpu-4g", gpu="a100-40g", fits="A100-40G"),
    Install("four-gpus", "aks", "Standard_NC96ads_A100_v4", gpu="a100-pcie"),
    Install("single-node", "eks", "p4de.24xlarge"),
    Install("single-node", "eks", "p4d.24xlarge", gpu="a100-40g", fits="A100-40G"),
    Install("single-node", "bare-metal", "server-with-8-cards", gpu="a100-pcie"),
    Install("two-nodes", "eks", "p4de.24xlarge", 2),
    Install("two-nodes", "bare-metal", "DGX-A100", 2),
    Install("two-nodes", "aks", "Standard_ND96asr_v4", 2, "a100-40g", "A100-40G"),
    Install("three-nodes", "gke", "a2-ultragpu-4g", 3),
    Install("three-nodes", "aks", "Standard_NC96ads_A100_v4", 3, "a100-pcie"),
    Install("multi-node", "eks", "p4de.24xlarge", 4),
    Install("multi-node", "aks", "Standard_ND96amsr_A100_v4", 4),
    Install("eight-nodes", "gke", "a2-ultragpu-8g", 8),
    Install("eight-nodes", "aks", "Standard_ND96asr_v4", 8, "a100-40g", "A100-40G"),
    Install("eight-nodes", "bare-metal", "DGX-A100", 8),
]


@pytest.mark.parametrize("install", INSTALLS, ids=lambda of: f"{of.size} {of.machine}")
def test_preflight_finds_no_problem_with_a_preset_on_a_platform(install: Install) -> None:
    found = preflight_findings_of_values(install.values, *install.objects())
    assert warnings_and_problems(found) == {}
    for pool in ("llama-70b", "llama-8b"):
        fine = finding_titled(found, f"weights of {pool}")
        assert (fine.severity, fine.seen.rpartition(" ")[2]) == ("ok", install.fits)


def test_every_preset_platform_and_gpu_is_tested() -> None:
    assert {of.size for of in INSTALLS} == set(SIZES)
    assert {of.platform for of in INSTALLS} == set(PLATFORMS)
    assert {of.gpu for of in INSTALLS} == {"", *GPU_KINDS}
    assert {of.machine for of in INSTALLS} == set(MACHINES)


def test_nodes_with_another_a100_are_reported_with_the_matching_values_files() -> None:
    smaller = Install("single-node", "eks", "p4d.24xlarge")
    found = preflight_findings_of_values(smaller.values, *smaller.objects())
    room = finding_titled(found, "room for llama-70b")
    assert room.severity == "problem"
    assert "{node.kubernetes.io/instance-type: p4d.24xlarge} (gpu-0)" in room.remedy
    assert "helm/antefix/values/gpus" in room.remedy


def test_before_nodes_exist_the_affinity_determines_their_gpu() -> None:
    smaller = Install("single-node", "eks", "p4d.24xlarge", gpu="a100-40g")
    found = preflight_findings_of_values(smaller.values, *READY, *THERE["eks"])
    assert finding_titled(found, "weights of llama-70b").seen.endswith("fit A100-40G")


def test_tensor_parallelism_over_four_pcie_cards_is_a_warning() -> None:
    wide = Install("single-node", "bare-metal", "server-with-8-cards", gpu="a100-pcie")
    values = wide.values
    values["fleet"]["gpu_budget"] = 16
    values["fleet"]["pools"]["llama-70b"]["engine_args"]["tensor_parallel_size"] = 4
    found = preflight_findings_of_values(values, *wide.objects())
    assert "in pairs at most" in warnings_and_problems(found)["links of llama-70b"]


def test_a_storage_class_with_the_file_system_id_of_the_page_is_a_problem() -> None:
    copied = storage_class(
        "efs", "efs.csi.aws.com", parameters={"fileSystemId": "fs-0123456789abcdef0"}
    )
    install = Install("single-node", "eks", "p4de.24xlarge")
    objects = [of for of in install.objects() if of["metadata"]["name"] != "efs"]
    found = preflight_findings_of_values(install.values, *objects, copied)
    assert warnings_and_problems(found)["storage class"].startswith(
        "efs has fileSystemId fs-0123456789abcdef0"
    )
