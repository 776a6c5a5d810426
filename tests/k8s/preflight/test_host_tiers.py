"""Whether engines have the memory of the host that their host tier reserves."""

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
