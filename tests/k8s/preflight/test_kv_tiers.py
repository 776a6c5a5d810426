"""Whether engines have the memory and the volume that their tiers need."""

from __future__ import annotations

import pytest

from tests.k8s.asking import READY, llama, preflight_findings


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
