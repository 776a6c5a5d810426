"""Check that engines have the memory of the host that `kv_tiers` reserves, and a volume for files.

The host tier is shared memory, which counts toward the limit of the container. KubeRay makes
/dev/shm as large as that limit.
"""

from collections.abc import Iterator
from math import ceil
from pathlib import PurePosixPath

from k8s.needs.needs import ClusterNeeds
from k8s.preflight.cpu_memory import PROCESSES_BYTES, gib
from k8s.preflight.findings import PreflightFinding


def host_tier_findings(needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    for group in needs.groups:
        pool, limit = needs.fleet.pools.get(group.name), group.limits.get("memory")
        if pool is None or pool.kv_tiers is None or limit is None:
            continue
        cache, weights = needs.cpu_caches.get(group.name, (0, None))
        tier = int(pool.kv_tiers.host_bytes)
        others = cache + (weights or (0, 0))[1] + PROCESSES_BYTES
        title = f"host tier of {group.name}"
        if tier + others <= limit:
            yield PreflightFinding("ok", title, f"{gib(tier)} of {gib(int(limit))}")
            continue
        yield PreflightFinding(
            "problem",
            title,
            f"a limit of {gib(int(limit))} is too small for {gib(tier)} of host tier and "
            f"{gib(others)} of other memory: the engine would not start, or be killed",
            f"set {group.settings}.resources.limits.memory to "
            f"{ceil((tier + others) / 2**30)}Gi or more, or lower "
            f"fleet.pools.{group.name}.kv_tiers.host_bytes",
        )


def disk_tier_findings(needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    """Yield a finding for each disk tier: files in the container's own layer end with the pod."""
    for group in needs.groups:
        pool = needs.fleet.pools.get(group.name)
        if pool is None or pool.kv_tiers is None or (disk := pool.kv_tiers.disk) is None:
            continue
        title, folder = f"disk tier of {group.name}", PurePosixPath(disk.folder)
        if any(folder.is_relative_to(mount) for mount in group.mounts):
            yield PreflightFinding("ok", title, f"{folder} is on a volume")
            continue
        yield PreflightFinding(
            "warning",
            title,
            f"{folder} is not on a volume: its files end with the pod, and count toward the "
            "ephemeral storage of the node",
            f"add a volume to {group.settings}.volumes and a mount of it at {folder} to "
            f"{group.settings}.volumeMounts",
        )
