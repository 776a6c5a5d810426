"""A real gateway and real replicas with a disk tier, one after the other with the same folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.fleets import own_redis
from deployments.fleet.fleet import Fleet
from tests.prometheus import asked_for, needs_tiers, queries
from tests.tiers.disk_tier import HOST_BYTES, OWN
from tests.tiers.host_tier import BLOCK, PROMPT, document
from tests.tiers.serving import Asked, Serving, ask, client_of, fleet_with, metrics_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

EXPORTED_S = 30.0
# What dashboards and alerts ask about tiers, which other fleets of tests do not have. Only replicas
# with peers hand over prefixes.
METRICS = {
    name
    for query in queries().values()
    for name in asked_for(query)
    if needs_tiers(name) and "handover" not in name
}
# The tokens of the prompt's whole blocks.
WHOLE = PROMPT // BLOCK * BLOCK


@pytest.fixture(scope="module")
def fleet(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    disk = {"folder": str(tmp_path_factory.mktemp("tier") / "folder"), "max_bytes": "1GiB"}
    return fleet_with(small_model, {"host_bytes": HOST_BYTES, "disk": disk})


@pytest.fixture
def serving(fleet: Fleet, tmp_path: Path) -> Iterator[Serving]:
    with own_redis.running(tmp_path) as redis:
        serving = Serving(fleet, redis.url, tmp_path)
        yield serving
        serving.stop()


async def until_exported(fleet: Fleet, names: set[str]) -> None:
    async with asyncio.timeout(EXPORTED_S):
        while True:
            exported = await metrics_of(fleet)
            if all(f"\n{name}{{" in exported for name in names):
                return
            await asyncio.sleep(0.5)


async def test_a_replica_serves_from_the_files_of_those_before_it(
    serving: Serving, fleet: Fleet
) -> None:
    await asyncio.to_thread(serving.start)
    async with client_of(fleet) as http:
        computed = await ask(http, OWN)
        assert computed[1:] == (0, 0)
        for number in range(1, 10):
            await ask(http, document(number))
        read = Asked(computed.token_ids, WHOLE, WHOLE)
        assert await ask(http, OWN) == read
        await until_exported(fleet, METRICS)
        for end in (serving.stop, serving.kill):
            await asyncio.to_thread(end)
            await asyncio.to_thread(serving.start)
            assert await ask(http, OWN) == read
