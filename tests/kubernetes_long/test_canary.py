"""A canary by Helm: installed, given all traffic, rolled back, removed. No pod restarts."""

from __future__ import annotations

import time
from collections.abc import Set
from copy import deepcopy
from typing import Any

import pytest
import yaml

from tests.kubernetes.api import until
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.release import MODEL, SMALL, Release
from tests.kubernetes_long.traffic import Traffic

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

NEXT = "smollm2-next"
# Settings reach gateways within seconds; a share of one half may miss some requests in a row.
WITHIN_S = 300.0
RECENT_S = 20.0


def values(percent: float | None) -> dict[str, Any]:
    """A model with a second pool, whose canary gets so much of it; None: there is no canary."""
    pool = deepcopy(yaml.safe_load(SMALL.read_text())["fleet"]["pools"]["engine"])
    route: dict[str, Any] = {"pools": {"engine": 1}}
    if percent is not None:
        # no step ends in this test
        route["canary"] = {"pool": "next", "steps": [percent], "step_s": 86_400, "alpha": 1e-6}
    pools = {"next": pool | {"served_model_name": NEXT}}
    return {"fleet": {"pools": pools, "models": {"assistant": route}}}


def wait_for(traffic: Traffic, models: Set[str]) -> float:
    """Seconds until just these models answer."""

    def is_so() -> bool:
        since = time.time() - RECENT_S
        return since > began and traffic.models(since) == models

    began = time.time()
    return until(f"answers of {sorted(models)} alone", is_so, WITHIN_S)


def test_a_canary_is_installed_upgraded_and_rolled_back_and_fails_no_request(
    release: Release,
) -> None:
    """Install, upgrade and rollback of a canary under load."""
    release.settle(values(50))
    before = release.processes()
    with release.traffic(model="assistant") as traffic:
        wait_for(traffic, {MODEL, NEXT})
        release.upgrade(values(100))
        measured("canary has all new conversations after", wait_for(traffic, {NEXT}), "s")
        release.helm("rollback")
        measured("rolled back after", wait_for(traffic, {MODEL, NEXT}), "s")
        release.upgrade(values(None))
        measured("without a canary after", wait_for(traffic, {MODEL}), "s")
    traffic.tell()
    assert not traffic.failed()
    assert release.processes() == before
