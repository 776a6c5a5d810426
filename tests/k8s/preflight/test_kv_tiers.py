"""Whether engines have the memory, the volume and the network that their tiers need."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.preflight.findings import PreflightFinding
from tests.k8s.asking import READY, finding_titled, llama, preflight_findings
from tests.k8s.objects import Object, node


@pytest.mark.parametrize(
    ("limit", "severity", "seen"),
    [
        ("96Gi", "ok", "64 GiB of 96 GiB"),
        ("64Gi", "problem", "a limit of 64 GiB is too small for 64 GiB of host tier and 1.67 GiB"),
    ],
)
def test_the_memory_limit_must_hold_the_host_tier(limit: str, severity: str, seen: str) -> None:
    resources = {"requests": {"memory": "1Gi"}, "limits": {"memory": limit}}
    (found,) = (
        one
        for one in preflight_findings(
            *READY,
            pools={"llama": llama(kv_tiers={"host_bytes": "64GiB"})},
            values={"enginePods": {"resources": resources}},
        )
        if one.title == "host tier of llama"
    )
    assert (found.severity, found.seen.startswith(seen)) == (severity, True)
    if severity == "problem":
        assert found.remedy == (
            "set enginePods.resources.limits.memory to 66Gi or more, or lower "
            "fleet.pools.llama.kv_tiers.host_bytes"
        )


DISK = {"host_bytes": "1GiB", "disk": {"folder": "/var/cache/kv/antefix", "max_bytes": "500Gi"}}


@pytest.mark.parametrize(
    ("mounted", "severity"), [("/var/cache/kv", "ok"), ("/var/cache/k", "warning")]
)
def test_the_folder_of_a_disk_tier_should_be_on_a_volume(mounted: str, severity: str) -> None:
    volumes = [{"name": "kv", "hostPath": {"path": "/mnt/nvme/kv"}}]
    mounts = [{"name": "kv", "mountPath": mounted}]
    (found,) = (
        one
        for one in preflight_findings(
            *READY,
            pools={"llama": llama(kv_tiers=DISK)},
            values={"enginePods": {"volumes": volumes, "volumeMounts": mounts}},
        )
        if one.title == "disk tier of llama"
    )
    assert found.severity == severity
    if severity == "warning":
        assert found.remedy == (
            "add a volume to enginePods.volumes and a mount of it at /var/cache/kv/antefix to "
            "enginePods.volumeMounts"
        )


RDMA = "rdma/rdma_shared_device_a"
SLO = {"interactive": {"ttft_s": 1}}
PEERS = {"host_bytes": "1GiB", "peers": True}


def node_with_rdma(amount: int = 1, gpus: int = 8, **settings: Any) -> Object:
    """A node whose device plugin offers this number of RDMA devices."""
    made = node("fast", gpus, **settings)
    made["status"]["allocatable"][RDMA] = str(amount)
    return made


def found_for_peers(
    *objects: Object, values: Object | None = None, **settings: Any
) -> list[PreflightFinding]:
    """The findings for a pool whose replicas pull blocks from each other."""
    pool = llama(**{"kv_tiers": PEERS, **(settings or {"replicas": 2})})
    return preflight_findings(*READY, *objects, pools={"llama": pool}, values=values)


@pytest.mark.parametrize(
    ("settings", "useless"),
    [
        ({"replicas": 1}, True),
        ({"replicas": 2}, False),
        ({"autoscaling": {"max_replicas": 1}, "slo": SLO}, True),
        ({"autoscaling": {"max_replicas": 2}, "slo": SLO}, False),
    ],
)
def test_peers_are_useless_in_a_pool_of_one_replica(settings: Object, useless: bool) -> None:
    found = [one for one in found_for_peers(**settings) if one.title == "peers of llama"]
    assert [one.severity for one in found] == ["warning"] * useless
    assert not useless or "fleet.pools.llama.kv_tiers.peers" in found[0].remedy


@pytest.mark.parametrize("enabled", [True, False])
def test_the_ports_of_peers_should_be_protected_by_network_policies(enabled: bool) -> None:
    found = found_for_peers(values={"networkPolicy": {"enabled": enabled}})
    warnings = [one for one in found if one.title == "peers and network policies"]
    assert [one.severity for one in warnings] == ["warning"] * (not enabled)


def test_without_rdma_peers_use_tcp() -> None:
    found = finding_titled(found_for_peers(node_with_rdma(0)), "RDMA of llama")
    assert (found.severity, found.remedy) == ("note", "")
    assert "over TCP" in found.seen


def test_pods_with_peers_should_request_the_rdma_that_nodes_offer() -> None:
    found = finding_titled(found_for_peers(node_with_rdma()), "RDMA of llama")
    assert (found.severity, RDMA in found.seen) == ("warning", True)
    assert found.remedy == f"set enginePods.resources.requests and limits to 1 for {RDMA}"


@pytest.mark.parametrize(
    "settings", [{"gpus": 0}, {"taints": [{"key": "storage", "effect": "NoSchedule"}]}]
)
def test_rdma_of_nodes_that_the_pool_cannot_use_does_not_count(settings: Object) -> None:
    found = found_for_peers(node_with_rdma(**settings))
    assert finding_titled(found, "RDMA of llama").severity == "note"


def test_pods_that_request_rdma_have_it() -> None:
    resources = {"requests": {RDMA: "1"}, "limits": {RDMA: "1"}}
    found = found_for_peers(node_with_rdma(), values={"enginePods": {"resources": resources}})
    assert finding_titled(found, "RDMA of llama").seen == f"pods request {RDMA}"


def test_pools_without_peers_need_no_network_between_replicas() -> None:
    found = found_for_peers(
        node_with_rdma(),
        values={"networkPolicy": {"enabled": False}},
        replicas=1,
        kv_tiers={"host_bytes": "1GiB"},
    )
    assert not [one for one in found if "peers" in one.title or "RDMA" in one.title]
