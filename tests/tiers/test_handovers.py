"""Real replicas hand their hot prefixes to each other when they start and when they leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from benchmarks.harness.fleets import own_redis
from deployments.fleet.fleet import Fleet
from tests.tiers.host_tier import BLOCK, PROMPT, document
from tests.tiers.serving import Serving, ask, becomes_true, client_of, counted, fleet_with

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

HOST_BYTES = 24_000_000
WHOLE = PROMPT // BLOCK * BLOCK
TAKEN = "antefix_replica_handover_tokens_total"


@pytest.fixture(scope="module")
def fleet(small_model: Path) -> Fleet:
    return fleet_with(small_model, {"host_bytes": HOST_BYTES, "peers": True})


@pytest.fixture
def serving(fleet: Fleet, tmp_path: Path) -> Iterator[Serving]:
    with own_redis.running(tmp_path) as redis:
        serving = Serving(fleet, redis.url, tmp_path)
        serving.start()
        yield serving
        serving.stop()


async def cached_of(http: aiohttp.ClientSession, numbers: range) -> list[int]:
    return [(await ask(http, document(number))).cached for number in numbers]


async def test_hot_prefixes_outlive_the_replica_that_had_them(
    serving: Serving, fleet: Fleet
) -> None:
    first, second = range(1, 5), range(5, 9)
    async with client_of(fleet) as http:
        for _ in range(2):
            await cached_of(http, first)

        serving.start_replica("new")

        async def has_taken() -> bool:
            return await counted(fleet, TAKEN, role="new") == len(first) * WHOLE

        assert await becomes_true(has_taken)
        for _ in range(2):
            await cached_of(http, second)
        serving.stop_replica("r0")
        assert await cached_of(http, second) == [WHOLE] * len(second)
        assert await cached_of(http, first) == [WHOLE] * len(first)
