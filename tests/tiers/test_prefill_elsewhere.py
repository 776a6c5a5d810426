"""Prompts that the engine of another pool computes, through a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.fleets import own_redis
from deployments.fleet.fleet import Fleet
from tests.tiers.host_tier import BLOCK, PROMPT, document
from tests.tiers.serving import Serving, ask, client_of, fleet_with

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ANSWER, HOST_BYTES = 16, 24_000_000
# whole blocks before the last token
PULLED = (PROMPT - 1) // BLOCK * BLOCK


@pytest.fixture(scope="module")
def fleet(small_model: Path) -> Fleet:
    return fleet_with(small_model, {"host_bytes": HOST_BYTES, "peers": True}, {"always": True})


@pytest.fixture
def serving(fleet: Fleet, tmp_path: Path) -> Iterator[Serving]:
    with own_redis.running(tmp_path) as redis:
        serving = Serving(fleet, redis.url, tmp_path)
        serving.start()
        yield serving
        serving.stop()


async def test_an_engine_pulls_prompts_that_another_pool_computes_until_that_is_lost(
    serving: Serving, fleet: Fleet
) -> None:
    async with client_of(fleet) as http:
        # without the other pool
        computed = [await ask(http, document(n), ANSWER, model="prompts") for n in range(3)]
        for number in range(3):
            answer = await ask(http, document(number), ANSWER)
            assert answer.token_ids == computed[number].token_ids
            assert answer.predicted == answer.cached == PULLED
        new = await ask(http, document(3), ANSWER)
        assert new.predicted == new.cached == PULLED
        serving.kill_replica("r1")
        lost = await asyncio.gather(*(ask(http, document(n), ANSWER) for n in (4, 5)))
        again = [await ask(http, document(n), ANSWER) for n in (4, 5)]
        assert [of.token_ids for of in lost] == [of.token_ids for of in again]
