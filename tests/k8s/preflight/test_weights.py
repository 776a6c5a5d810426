"""What preflight finds of weights on the GPUs that a cluster has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.k8s.asking import READY, finding_titled, llama, preflight_findings
from tests.k8s.objects import Object, node

AWQ = "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4"
SMALL = "NVIDIA-A100-SXM4-40GB"
TITLE = "weights of llama"


def pool(**args: Any) -> dict[str, Object]:
    given = {"max_model_len": 8192, "gpu_memory_utilization": 0.9, **args}
    return {"llama": llama(model=AWQ, engine_args=given)}


def test_weights_that_fit_the_nodes_gpus_are_fine() -> None:
    finding = finding_titled(preflight_findings(*READY, node("a100-1", 8), pools=pool()), TITLE)
    assert finding.severity == "ok"
    assert finding.seen == "kernels, dimensions and memory fit A100-80G"


def test_weights_that_no_node_of_the_cluster_holds_are_a_problem() -> None:
    finding = finding_titled(
        preflight_findings(*READY, node("a100-1", 8, model=SMALL), pools=pool()), TITLE
    )
    assert finding.severity == "problem"
    assert finding.seen.startswith(
        f"fleet.pools.llama.model = {AWQ}: its weights take 36.8 GiB of each GPU"
    )
    assert finding.remedy.startswith("Set tensor_parallel_size to 2")


def test_weights_that_some_nodes_do_not_hold_are_a_warning() -> None:
    nodes = [node("a100-1", 8), node("a100-2", 8, model=SMALL)]
    finding = finding_titled(preflight_findings(*READY, *nodes, pools=pool()), TITLE)
    assert finding.severity == "warning"
    assert ": on the A100-40G, its weights take" in finding.seen


def test_a_kernel_that_some_nodes_do_not_have_is_a_warning() -> None:
    labels = {"nvidia.com/gpu.memory": "81920"}
    nodes = [node("a100-1", 8), node("v100-1", 8, model="Tesla-V100-SXM2-16GB", labels=labels)]
    finding = finding_titled(preflight_findings(*READY, *nodes, pools=pool()), TITLE)
    assert finding.severity == "warning"
    assert "on the Tesla-V100-SXM2-16GB, vLLM has no kernel for W4A16" in finding.seen


def test_without_a_node_the_node_selector_determines_the_gpu() -> None:
    values = {"enginePods": {"nodeSelector": {"node.kubernetes.io/instance-type": "p4d.24xlarge"}}}
    assert (
        finding_titled(preflight_findings(*READY, pools=pool(), values=values), TITLE).severity
        == "problem"
    )


def test_nodes_that_may_not_be_listed_leave_the_node_selector() -> None:
    selector = {"cloud.google.com/gke-accelerator": "nvidia-a100-80gb"}
    values = {"enginePods": {"nodeSelector": selector}}
    found = preflight_findings(*READY, pools=pool(), values=values, forbidden=("list", "nodes"))
    assert finding_titled(found, TITLE).severity == "ok"


@pytest.mark.parametrize("model", ["NVIDIA-RTX-A6000", f"{SMALL}-MIG-3g.20gb"])
def test_an_unknown_gpu_is_a_note(model: str) -> None:
    finding = finding_titled(
        preflight_findings(*READY, node("gpu-1", 8, model=model), pools=pool()), TITLE
    )
    assert finding.severity == "note"
    assert finding.seen.startswith("kernels and memory not checked: no node label")
    assert "accelerator_type" in finding.remedy


def test_the_memory_of_a_slice_is_read_from_its_label() -> None:
    labels = {"nvidia.com/gpu.memory": "19968"}
    slices = node("gpu-1", 8, model=f"{SMALL}-MIG-3g.20gb", labels=labels)
    finding = finding_titled(
        preflight_findings(*READY, slices, pools=pool(tensor_parallel_size=2)), TITLE
    )
    assert finding.severity == "problem"
    assert f"of the {SMALL}-MIG-3g.20gb" in finding.seen


def test_an_unknown_model_is_a_note() -> None:
    finding = finding_titled(preflight_findings(*READY, node("a100-1", 8)), TITLE)
    assert finding.severity == "note"
    assert finding.seen == "not checked: the config of org/model is not on this machine"


def test_pools_on_cpus_are_left_to_the_check_of_the_fleet() -> None:
    pools = {"llama": llama(resources={"gpus": 0})}
    assert TITLE not in [one.title for one in preflight_findings(*READY, pools=pools)]
