"""GPUs for plans, with the makers' figures for dense operations, without sparsity.

By NVIDIA:
- A100, H100 (SXM), H200, L4, L40S: their datasheets at nvidia.com/en-us/data-center/. A100s are SXM
  modules except the PCIe card, whose link is PCIe 4.0's; bridges join two cards at NVLink's 300
- B200: an eighth of an HGX B200 board, half of the figures with sparsity; its bandwidth as its
  driver has it (github.com/pytorch/ao/pull/4002, 2026-03-05)
- A10G, which only Amazon has: baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference

`memory_bytes` is the memory that the driver reports, in MiB by nvidia-smi, not the label's
gigabytes (github.com/modal-labs/modal-client/pull/2797, 2025-01-23; B200 by
github.com/NVIDIA/TensorRT-LLM/issues/10278). Prices are USD for an hour on demand: the middle of
the prices of specialized clouds in May 2026 (mercatus-ai.com/blog/cloud-gpu-pricing), if it has
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import Problem

MIB = 1 << 20
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True)
class Gpu:
    """Rates are bytes and operations per second; `link` is one direction between two GPUs of a
    node.

    `flops` lists the types with fast kernels in vLLM: "bf16", and "int8" and "fp8" if supported.
    INT8 on Blackwell has none.
    """

    name: str
    ray_type: str
    memory_bytes: int
    bandwidth: float
    flops: Mapping[str, float]
    capability: tuple[int, int]
    link: float
    price_per_hour: float | None = None


def _gpu(
    name: str,
    ray_type: str,
    mib: int,
    gigabytes_s: float,
    teraflops: Mapping[str, float],
    capability: tuple[int, int],
    link_gigabytes_s: float,
    price: float | None = None,
) -> Gpu:
    flops = {kind: rate * TERA for kind, rate in teraflops.items()}
    bandwidth, link = gigabytes_s * GIGA, link_gigabytes_s * GIGA
    return Gpu(name, ray_type, mib * MIB, bandwidth, flops, capability, link, price)


AMPERE = {"bf16": 312.0, "int8": 624.0}
HOPPER = {"bf16": 989.4, "int8": 1978.9, "fp8": 1978.9}

GPUS: tuple[Gpu, ...] = (
    _gpu("a100-80g", "A100-80G", 81920, 2039, AMPERE, (8, 0), 300, 1.30),
    _gpu("a100-40g", "A100-40G", 40960, 1555, AMPERE, (8, 0), 300),
    _gpu("a100-80g-pcie", "A100-80G", 81920, 1935, AMPERE, (8, 0), 32),
    _gpu("h100", "H100", 81559, 3352, HOPPER, (9, 0), 450, 3.00),
    _gpu("h200", "H200", 143771, 4800, HOPPER, (9, 0), 450, 4.00),
    _gpu("b200", "B200", 183359, 7672, {"bf16": 2250, "fp8": 4500}, (10, 0), 900),
    _gpu("l40s", "L40S", 46068, 864, {"bf16": 362.05, "int8": 733, "fp8": 733}, (8, 9), 32),
    _gpu("l4", "L4", 23034, 300, {"bf16": 121, "int8": 242.5, "fp8": 242.5}, (8, 9), 32),
    _gpu("a10g", "A10G", 23028, 600, {"bf16": 70, "int8": 140}, (8, 6), 32),
)


def gpu_called(name: str) -> Gpu:
    """Return the GPU of that name, in any case; Problem lists the known ones."""
    for gpu in GPUS:
        if name.lower() in (gpu.name, gpu.ray_type.lower()):
            return gpu
    known = ", ".join(gpu.name for gpu in GPUS)
    raise Problem(f"the GPU {name!r} is unknown", f"use one of {known}")
