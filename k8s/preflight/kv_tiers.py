"""Check that engines have the memory of the host that `kv_tiers` reserves, and a volume for files.

The host tier is shared memory, which counts toward the limit of the container. KubeRay makes
/dev/shm as large as that limit. With `peers`, also check the network between replicas.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import PurePosixPath

from k8s.needs.fitting import Node, against, lacking
from k8s.needs.needs import Amounts, ClusterNeeds, PodGroup
from k8s.preflight.cpu_memory import PROCESSES_BYTES, gib
from k8s.preflight.findings import PreflightFinding, some

# the prefix of the resources of NVIDIA's device plugin for RDMA:
# github.com/Mellanox/k8s-rdma-shared-dev-plugin
_RDMA = "rdma/"


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


def peer_findings(needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    """Check that replicas have peers, and that network policies protect their ports.

    UCX authenticates no client.
    """
    groups = _with_peers(needs)
    for group in groups:
        if needs.fleet.pools[group.name].most_replicas > 1:
            continue
        yield PreflightFinding(
            "warning",
            f"peers of {group.name}",
            "the pool has at most one replica, so there is no other replica to pull blocks from",
            f"allow more replicas of {group.name}, or set "
            f"fleet.pools.{group.name}.kv_tiers.peers to false",
        )
    if groups and not needs.network_policies:
        names = some([group.name for group in groups])
        yield PreflightFinding(
            "warning",
            "peers and network policies",
            f"networkPolicy.enabled is false, so every pod of the cluster may connect to the ports "
            f"at which UCX copies the blocks of replicas of {names}; they require no secret",
            "set networkPolicy.enabled to true, or restrict connections to engines in another way",
        )


def rdma_findings(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    """Report for each pool with peers whether its pods have RDMA."""
    for group in _with_peers(needs):
        title = f"RDMA of {group.name}"
        if requested := _rdma(group.requests):
            yield PreflightFinding("ok", title, f"pods request {some(requested)}")
            continue
        usable = [n for n in nodes if not against(group, n) and not lacking(group, n.allocatable)]
        if offered := sorted({name for node in usable for name in _rdma(node.allocatable)}):
            yield PreflightFinding(
                "warning",
                title,
                f"nodes offer {some(offered)}, but pods request none of them, so replicas pull "
                "blocks over TCP",
                f"set {group.settings}.resources.requests and limits to 1 for {offered[0]}",
            )
            continue
        yield PreflightFinding(
            "note",
            title,
            "no node for its pods offers a resource rdma/..., so replicas pull blocks over TCP; "
            "this takes CPU time of both engines and bandwidth of the network between pods",
        )


def _with_peers(needs: ClusterNeeds) -> list[PodGroup]:
    pools = needs.fleet.pools
    tiers = {name: pool.kv_tiers for name, pool in pools.items() if pool.kv_tiers is not None}
    return [group for group in needs.groups if group.name in tiers and tiers[group.name].peers]


def _rdma(amounts: Amounts) -> list[str]:
    return [name for name, amount in amounts.items() if name.startswith(_RDMA) and amount > 0]
