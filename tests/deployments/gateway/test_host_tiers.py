"""Requests whose prefix an engine has only in its host tier: loaded, or computed again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from deployments.wire.headers import EXPECTED_CACHED_HEADER, KV_TIERS_HEADER, NO_TIERS
from deployments.wire.inference_paths import COMPLETIONS
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import until

PROMPT = [*range(100, 180)]
OFFLOADED = PROMPT[:48]
PATIENT_MS = 1000.0
# They compute 1,000 tokens per second.
FASTER, SLOWER = 4000.0, 500.0


@pytest.fixture
def engines() -> tuple[FakeEngine, FakeEngine]:
    engines = FakeEngine("r0"), FakeEngine("r1")
    for engine in engines:
        engine.renderer = facts()
    return engines


@pytest.fixture
async def front(
    engines: tuple[FakeEngine, FakeEngine], redis_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[Front]:
    for engine in engines:
        engine.host_load_rate = request.param
    async with gateway_before(
        *engines,
        redis_url=redis_url,
        lookup_budget_ms=PATIENT_MS,
        pool={"kv_tiers": {"host_bytes": "1GiB"}},
    ) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        await front.published["r1"].offloads(OFFLOADED)
        yield front


async def explained(front: Front) -> dict[str, Any]:
    """The candidate that the request was sent to."""
    async with front.post(COMPLETIONS, prompt=PROMPT) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        explanation = await front.explanation_of(answer.headers)
    chosen: dict[str, Any] = explanation["candidates"][0]
    assert chosen["replica_id"] == explanation["replica"]
    return chosen


@pytest.mark.parametrize("front", [FASTER], indirect=True)
async def test_a_request_goes_where_its_prefix_is_loaded(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    chosen = await explained(front)
    assert chosen["replica_id"] == "r1"
    assert (chosen["host_tokens"], chosen["host_load"]) == (48, 48 / FASTER)
    assert chosen["cached_tokens"] == chosen["confirmed_tokens"] == 48
    assert engines[1].headers[-1][EXPECTED_CACHED_HEADER] == "48"
    assert KV_TIERS_HEADER not in engines[1].headers[-1]


@pytest.mark.parametrize("front", [SLOWER], indirect=True)
async def test_the_engine_computes_what_takes_longer_to_load(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    front.sees(engines[1])
    chosen = await explained(front)
    assert (chosen["host_tokens"], chosen["host_load"], chosen["cached_tokens"]) == (48, 0, 0)
    assert engines[1].headers[-1][EXPECTED_CACHED_HEADER] == "0"
    assert engines[1].headers[-1][KV_TIERS_HEADER] == NO_TIERS
