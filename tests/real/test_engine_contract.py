"""What Antefix needs of vLLM still exists, in the real engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from tests import contract
from tests.contract import Server
from tests.real.conftest import RunningFleet

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.core, pytest.mark.timeout(900)]

METRICS = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:request_prefill_time_seconds_bucket",
    "vllm:request_success_total",
}


@pytest.fixture(scope="module")
def engine_url(fleet: RunningFleet) -> str:
    url: str = fleet.replicas("other")[0]["url"]
    return url


@pytest.mark.parametrize("check", contract.ENGINE_CHECKS, ids=lambda check: check.__name__)
async def test_the_real_engine_keeps_the_contract(
    check: Callable[[Server], Awaitable[None]], engine_url: str, fleet: RunningFleet
) -> None:
    async with aiohttp.ClientSession() as http:
        await check(Server(http, engine_url, fleet.other_model, fleet.engine_headers(engine_url)))


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_the_engine_keeps_the_contract_through_a_gateway(
    check: Callable[[Server], Awaitable[None]], fleet: RunningFleet
) -> None:
    async with aiohttp.ClientSession() as http:
        await check(Server(http, fleet.root, fleet.other_model, fleet.headers))


async def test_the_engine_has_the_metrics_that_antefix_needs(fleet: RunningFleet) -> None:
    url = fleet.replicas()[0]["url"]
    body = {"model": fleet.model, "prompt": "hello", "max_tokens": 1}
    async with aiohttp.ClientSession(url, headers=fleet.engine_headers(url)) as http:
        # a gauge exists from the engine's first step on
        async with http.post("/v1/completions", json=body) as answer:
            assert answer.status == 200
        async with http.get("/metrics") as answer:
            text = await answer.text()
    names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}
    assert names >= METRICS
