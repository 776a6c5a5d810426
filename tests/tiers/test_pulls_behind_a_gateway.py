"""A busy replica's prefix is pulled by the other one, by the decision of a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.fleets import own_redis
from deployments.fleet.fleet import Fleet
from tests.tiers.host_tier import document
from tests.tiers.serving import Serving, ask, client_of, fleet_with, metrics_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

# More requests than both replicas run at once.
REQUESTS, ANSWER, HOST_BYTES = 6, 64, 24_000_000
EXPORTED_S = 30.0
RATE = "antefix_replica_tier_load_tokens_per_second"


@pytest.fixture(scope="module")
def fleet(small_model: Path) -> Fleet:
    return fleet_with(small_model, {"host_bytes": HOST_BYTES, "peers": True})


@pytest.fixture
def serving(fleet: Fleet, tmp_path: Path) -> Iterator[Serving]:
    with own_redis.running(tmp_path) as redis:
        serving = Serving(fleet, redis.url, tmp_path, replicas=2)
        serving.start()
        yield serving
        serving.stop()


async def counted(fleet: Fleet, name: str, **labels: str) -> float:
    """The sum over the metric's series with these labels."""
    families = text_string_to_metric_families(await metrics_of(fleet))
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def until_pulled(fleet: Fleet) -> None:
    async with asyncio.timeout(EXPORTED_S):
        while True:
            decided = await counted(fleet, "antefix_kv_tier_requests_total", way="peer")
            # the engine has no rate before it has pulled tokens
            rate = await counted(fleet, RATE, source="peer")
            if decided and rate:
                return
            await asyncio.sleep(0.5)


async def test_requests_for_a_busy_replica_pull_their_prefix_to_another_one(
    serving: Serving, fleet: Fleet
) -> None:
    async with client_of(fleet) as http:
        computed = await ask(http, document(0), ANSWER)
        for _ in range(2):  # both replicas are known to decode
            await asyncio.gather(*(ask(http, document(n), ANSWER) for n in range(1, 5)))
        answers = await asyncio.gather(*(ask(http, document(0), ANSWER) for _ in range(REQUESTS)))
    assert {tuple(answer.token_ids) for answer in answers} == {tuple(computed.token_ids)}
    await until_pulled(fleet)
