"""The planner's KV cache is the engine's own."""

from __future__ import annotations

import aiohttp
import pytest

from deployments.models.model import EMBEDDED
from deployments.models.model_config import model_config
from deployments.wire.engine_facts import FACTS_PATH, EngineFacts
from tests.real.conftest import RunningFleet
from weights.model.cache_dtype import CACHE_DTYPES
from weights.model.memory import GIB, kv_tokens
from weights.model.model_shape import shape_of

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]


async def test_the_planned_kv_cache_is_within_a_fiftieth_of_the_engines(
    fleet: RunningFleet,
) -> None:
    url = fleet.replicas("other")[0]["url"]
    async with (
        aiohttp.ClientSession(url, headers=fleet.engine_headers(url)) as http,
        http.get(FACTS_PATH) as answer,
    ):
        facts = EngineFacts.from_json(await answer.read())
    # the fleet file gives each engine 1 GiB, and float32
    shape = shape_of(model_config(EMBEDDED) or {})
    planned = kv_tokens(shape, GIB, CACHE_DTYPES["float32"], facts.block_tokens)
    print(f"planned {planned} tokens, the engine has {facts.kv_capacity_tokens}")
    assert planned == pytest.approx(facts.kv_capacity_tokens, rel=0.02)
