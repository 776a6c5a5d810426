"""Devices of a pool's replicas: CPUs, or GPUs named by the fleet file or a cluster.

A GPU has Ray's name, as in `resources.accelerator_type`. `A100` stands for both of its sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployments.fleet.pool import Pool
from weights.kernels.finding import Device
from weights.kernels.fits import UTILIZATION
from weights.kernels.kernels import Capability
from weights.model.gpus import GPUS

# Ray's names of other NVIDIA GPUs, for which there are no plans: developer.nvidia.com/cuda-gpus
_OTHER_GPUS: Mapping[str, Capability] = {
    "K80": (3, 7),
    "P100": (6, 0),
    "P4": (6, 1),
    "V100": (7, 0),
    "T4": (7, 5),
    "H20": (9, 0),
    "GB200": (10, 0),
    "B300": (10, 3),
    "GB300": (10, 3),
    "RTX-PRO-6000": (12, 0),
}


# Clouds round the driver's number.
_ROUNDED = 0.05


@dataclass(frozen=True)
class OfferedGpu:
    """A GPU that a cluster has for a pool: Ray's name for its kind, and the cluster's name.

    `memory_bytes`: as the driver reports it; None if only the kind is known.
    """

    accelerator: str
    called: str
    memory_bytes: int | None = None


def devices_of(pool: Pool, offered: Sequence[OfferedGpu] = ()) -> list[Device]:
    """Return the devices on which the pool's replicas may run, the one with the most memory first.

    `offered` overrides the fleet file's accelerator_type. Empty if none is known.
    """
    if offered:
        found = {device.name: device for each in offered for device in _offered(each)}
    elif (kind := pool.resources.accelerator_type) is None:
        found = {"CPU": Device("CPU", None)} if is_on_cpus(pool) else {}
    else:
        found = {device.name: device for device in _named(kind)}
    return sorted(found.values(), key=lambda device: device.memory_bytes or 0, reverse=True)


def is_on_cpus(pool: Pool) -> bool:
    return pool.resources.gpus == 0 or any(key.startswith("VLLM_CPU_") for key in pool.env)


def gpu_memory_share(pool: Pool) -> float | None:
    """Return the share of a GPU's memory, up to 1, that the pool's engines on it allocate together.

    None: the pool runs on CPUs, or `kv_cache_memory_bytes` replaces the share.
    """
    if is_on_cpus(pool) or pool.engine_args.get("kv_cache_memory_bytes"):
        return None
    given = pool.engine_args.get("gpu_memory_utilization")
    each = given if isinstance(given, int | float) else UTILIZATION
    return min(each / min(pool.resources.gpus or 1, 1), 1.0)


def _offered(gpu: OfferedGpu) -> list[Device]:
    known = _named(gpu.accelerator)
    if gpu.memory_bytes is None or not known:
        return known
    whole = [of for of in known if _is_near(gpu.memory_bytes, of.memory_bytes or 0)]
    return whole or [Device(gpu.called, known[0].capability, gpu.memory_bytes)]


def _is_near(said: int, listed: int) -> bool:
    """Return whether the memory in a label is about the GPU's full memory."""
    return abs(said - listed) < listed * _ROUNDED


def _named(kind: str) -> list[Device]:
    known = [gpu for gpu in GPUS if gpu.ray_type == kind]
    known = known or [gpu for gpu in GPUS if gpu.ray_type.startswith(f"{kind}-")]
    if known:
        return [Device(gpu.ray_type, gpu.capability, gpu.memory_bytes) for gpu in known]
    return [Device(kind, _OTHER_GPUS[kind])] if kind in _OTHER_GPUS else []
