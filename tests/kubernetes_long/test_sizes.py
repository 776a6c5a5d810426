"""Replicas and pods that follow the traffic."""

from __future__ import annotations

import pytest

from tests.kubernetes_long.kubectl import kubectl, until
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.release import READY_S, Release

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

AUTOSCALED = {
    "fleet": {
        "pools": {
            "engine": {
                "autoscaling": {"min_replicas": 1, "max_replicas": 2, "startup_s": 40},
                "slo": {"interactive": {"ttft_s": 2}, "batch": {"ttft_s": 120}},
            }
        }
    }
}


def test_a_pool_grows_with_its_traffic_and_gives_its_pod_back(release: Release) -> None:
    release.settle(AUTOSCALED)
    with release.traffic(clients=12) as traffic:
        grew = until("a second engine's pod", lambda: len(release.pods("engine")) == 2, READY_S)
        measured("autoscaling, until there is a second pod", grew, "s")
        until("both serve", release.is_ready, READY_S)
    assert not traffic.failed()
    left = until("one pod again", lambda: len(release.pods("engine")) == 1, within_s=1200)
    measured("autoscaling, until the idle pod has left", left, "s")
    autoscaler = kubectl(
        *("logs", release.pod("head"), "--namespace", release.namespace, "-c", "autoscaler")
    )
    assert "forbidden" not in autoscaler.lower()
