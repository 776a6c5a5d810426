"""Check that engines on CPUs have the memory that vLLM requires at its start.

vLLM does not start if less memory is left than the configured KV cache, which it then allocates.
The memory left is the container's limit minus its use. That use includes the weights and the
processes: Ray's agents, the replica, and vLLM. Source: vllm/v1/worker/cpu_worker.py,
determine_available_memory, 0.32.
"""

from collections.abc import Iterator
from math import ceil

from k8s.needs.needs import ClusterNeeds
from k8s.preflight.findings import PreflightFinding

# An engine's container with 1 GiB of cache and SmolLM2-135M in float32 (0.50 GiB) used 3248 MiB
# without the page cache: Kubernetes 1.34, vLLM 0.32.0, Ray 2.60.0, 2026-11-22. The chart's
# templates/_memory.tpl has the same number.
PROCESSES_BYTES = 1711 * 2**20


def cpu_memory_findings(needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    for group in needs.groups:
        cache, weights = needs.cpu_caches.get(group.name, (0, None))
        limit = group.limits.get("memory")
        if not cache or limit is None:
            continue
        least, most = weights or (0, 0)
        title = f"memory of {group.name}"
        if cache + most + PROCESSES_BYTES <= limit:
            words = f"{gib(int(limit))} for {_held(cache, most)}"
            yield PreflightFinding("ok", title, words)
            continue
        fits_bfloat16 = cache + least + PROCESSES_BYTES <= limit
        refuses = "vLLM would refuse to start"
        remedy = (
            f"set {group.settings}.resources.limits.memory to "
            f"{ceil((cache + most + PROCESSES_BYTES) / 2**30)}Gi or more, or lower "
            f"VLLM_CPU_KVCACHE_SPACE of fleet.pools.{group.name}"
        )
        if fits_bfloat16:
            refuses += " on a CPU without bfloat16, where it computes in float32"
            remedy += ", or set engine_args.dtype to bfloat16"
        yield PreflightFinding(
            "warning" if fits_bfloat16 else "problem",
            title,
            f"a limit of {gib(int(limit))} is too small for {_held(cache, most)} and "
            f"{gib(PROCESSES_BYTES)} of processes: {refuses}",
            remedy,
        )


def _held(cache: int, weights: int) -> str:
    if not weights:
        return f"{gib(cache)} of KV cache, weights of unknown size"
    return f"{gib(cache)} of KV cache, {gib(weights)} of weights"


def gib(size: int) -> str:
    """Return bytes in GiB, for people."""
    return f"{size / 2**30:.3g} GiB"
