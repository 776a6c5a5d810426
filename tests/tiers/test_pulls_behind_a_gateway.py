"""A busy replica's prefix is pulled by the other one, by the decision of a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.harness.fleets import own_redis
from deployments.fleet.fleet import Fleet
from tests.some import some
from tests.tiers.host_tier import document
from tests.tiers.serving import (
    Serving,
    ask,
    becomes_true,
    client_of,
    counted,
    fleet_with,
    metrics_of,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

# More requests than both replicas run at once.
REQUESTS, ANSWER, HOST_BYTES = 6, 64, 24_000_000
TRIES = 8
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


async def pulls(fleet: Fleet) -> bool:
    """Whether the gateway chose a pull, and an engine pulled: it has no rate before."""
    decided = await counted(fleet, "antefix_kv_tier_requests_total", way="peer")
    return bool(decided and await counted(fleet, RATE, source="peer"))


async def test_requests_for_a_busy_replica_pull_their_prefix_to_another_one(
    serving: Serving, fleet: Fleet
) -> None:
    async with client_of(fleet) as http:
        for _ in range(2):  # both replicas are known to decode
            await asyncio.gather(*(ask(http, document(n), ANSWER) for n in range(1, 5)))
        # Where the wait is shorter than the pull, which depends on the machine, none pulls.
        for number in some(range(5, 5 + TRIES)):
            prompt = document(number)
            computed = await ask(http, prompt, ANSWER)
            answers = await asyncio.gather(*(ask(http, prompt, ANSWER) for _ in range(REQUESTS)))
            assert {tuple(answer.token_ids) for answer in answers} == {tuple(computed.token_ids)}
            if await becomes_true(partial(pulls, fleet)):
                return
    pytest.fail(f"No request of {TRIES * REQUESTS} pulled: {await metrics_of(fleet)}")
