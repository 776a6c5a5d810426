"""A soak test measures what real gateways hold in memory."""

from __future__ import annotations

import pytest

from benchmarks.soak.gateways import held_by_gateways
from benchmarks.soak.watch import OF_REQUESTS
from tests.real.conftest import RunningFleet

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(300)]


def test_the_memory_of_every_gateway_is_measured(fleet: RunningFleet) -> None:
    with held_by_gateways(fleet.home) as held:
        for _ in range(2):
            found = held()
            assert set(OF_REQUESTS) - {"Scope.leases"} <= found.keys()
            # two gateways, and two pools in each
            assert found["Pools.by_name"] == 4
