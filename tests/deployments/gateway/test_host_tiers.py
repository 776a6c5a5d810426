"""Requests whose prefix an engine has only in its host tier: loaded there, pulled by another
engine, or computed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from deployments.wire.headers import (
    EXPECTED_CACHED_HEADER,
    HOST_ONLY,
    KV_SOURCE_HEADER,
    KV_TIERS_HEADER,
    NO_TIERS,
    TIER_TOKENS_HEADER,
)
from deployments.wire.inference_paths import COMPLETIONS
from router.board.load import LoadBoard
from router.index.cached_blocks import DISK_MEDIUM, HOST_MEDIUM
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import cancelled, until

PROMPT = [*range(100, 180)]
OFFLOADED = PROMPT[:48]
HOST_TIER: dict[str, Any] = {"host_bytes": "1GiB"}
TIERS = HOST_TIER | {"disk": {"folder": "/var/cache/antefix", "max_bytes": "1TiB"}}
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
        engine.host_load_rate, engine.disk_load_rate = request.param
    async with gateway_before(
        *engines,
        redis_url=redis_url,
        lookup_budget_ms=PATIENT_MS,
        pool={"kv_tiers": TIERS if engines[0].disk_load_rate else HOST_TIER},
    ) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        medium = DISK_MEDIUM if engines[0].disk_load_rate else HOST_MEDIUM
        await front.published["r1"].offloads(OFFLOADED, medium)
        yield front


async def tier_counts(front: Front) -> dict[tuple[str, ...], float]:
    """The counters of tiers that are not 0, after the explanation of the request is complete."""
    prefix = "antefix_kv_tier_"
    return {
        (name.removeprefix(prefix), *labels): value
        for (name, *labels), value in (await front.metrics()).items()
        if name.startswith(prefix) and name.endswith("_total") and value and "ttft" not in name
    }


async def explanation_of(front: Front, prompt: list[int] = PROMPT) -> dict[str, Any]:
    async with front.post(COMPLETIONS, prompt=prompt) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        return await front.explanation_of(answer.headers)


async def explained(front: Front) -> dict[str, Any]:
    """The candidate that the request was sent to."""
    explanation = await explanation_of(front)
    chosen: dict[str, Any] = explanation["candidates"][0]
    assert chosen["replica_id"] == explanation["replica"]
    return chosen


@pytest.mark.parametrize("front", [(FASTER, 0.0)], indirect=True)
async def test_a_request_goes_where_its_prefix_is_loaded(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    chosen = await explained(front)
    assert chosen["replica_id"] == "r1"
    assert (chosen["host_tokens"], chosen["host_load"]) == (48, 48 / FASTER)
    assert chosen["cached_tokens"] == chosen["confirmed_tokens"] == 48
    assert engines[1].headers[-1][EXPECTED_CACHED_HEADER] == "48"
    assert KV_TIERS_HEADER not in engines[1].headers[-1]
    assert KV_SOURCE_HEADER not in engines[1].headers[-1]
    assert engines[1].headers[-1][TIER_TOKENS_HEADER] == "48 0 0"
    assert await tier_counts(front) == {
        ("requests_total", "host"): 1,
        ("offers_total", "host", "yes"): 1,
        ("prompt_tokens_total", "host"): 48,
        ("prompt_tokens_total", "computed"): len(PROMPT) - 48,
    }


@pytest.mark.parametrize("front", [(SLOWER, 0.0)], indirect=True)
async def test_the_engine_computes_what_takes_longer_to_load(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    front.sees(engines[1])
    chosen = await explained(front)
    assert (chosen["host_tokens"], chosen["host_load"], chosen["cached_tokens"]) == (48, 0, 0)
    assert engines[1].headers[-1][EXPECTED_CACHED_HEADER] == "0"
    assert engines[1].headers[-1][KV_TIERS_HEADER] == NO_TIERS
    assert TIER_TOKENS_HEADER not in engines[1].headers[-1]
    assert await tier_counts(front) == {
        ("requests_total", "compute"): 1,
        ("offers_total", "host", "no"): 1,
        ("prompt_tokens_total", "computed"): len(PROMPT),
    }


@pytest.mark.parametrize("front", [(FASTER, FASTER)], indirect=True)
async def test_a_request_goes_where_its_prefix_is_read_from_files(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    chosen = await explained(front)
    assert chosen["replica_id"] == "r1"
    assert (chosen["host_tokens"], chosen["disk_tokens"]) == (0, 48)
    assert chosen["disk_load"] == pytest.approx(2 * 48 / FASTER)
    assert engines[1].headers[-1][EXPECTED_CACHED_HEADER] == "48"
    assert KV_TIERS_HEADER not in engines[1].headers[-1]


@pytest.mark.parametrize("front", [(FASTER, SLOWER)], indirect=True)
async def test_the_engine_reads_no_files_where_computing_takes_less_time(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    front.sees(engines[1])
    chosen = await explained(front)
    assert (chosen["disk_tokens"], chosen["disk_load"], chosen["cached_tokens"]) == (48, 0, 0)
    assert engines[1].headers[-1][KV_TIERS_HEADER] == HOST_ONLY
    assert TIER_TOKENS_HEADER not in engines[1].headers[-1]


@pytest.mark.parametrize("front", [(FASTER, 0.0)], indirect=True)
async def test_the_explanation_compares_the_measured_time_with_the_best_alternative(
    front: Front,
) -> None:
    explanation = await explanation_of(front)
    first, second = explanation["candidates"]
    assert explanation["way"] == "host"
    # computing the prompt takes as long on both replicas
    assert first["ways"]["compute"] == second["predicted_ttft"] == 80 / 1000
    assert first["ways"]["host"] == first["predicted_ttft"]
    alternative, measured_s = explanation["alternative"], explanation["ttft_s"]["engine"]
    assert alternative["predicted_ttft"] == 80 / 1000
    assert alternative["regret"] == pytest.approx(measured_s - 80 / 1000)
    metrics = await front.metrics()
    seconds = "antefix_kv_tier_ttft_seconds_total"
    assert metrics[seconds, "predicted", "host"] == pytest.approx(first["predicted_ttft"])
    assert metrics[seconds, "measured", "host"] == pytest.approx(measured_s)


@pytest.fixture
async def pulling(
    engines: tuple[FakeEngine, FakeEngine], redis_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[Front]:
    """A gateway that knows r1, whose host tier has the prefix, as the busy one of two engines."""
    for engine in engines:
        engine.host_load_rate, engine.peer_load_rate = FASTER, request.param
        engine.peer = f"10.0.0.{engine.slot}:5600"
    async with gateway_before(
        *engines,
        redis_url=redis_url,
        lookup_budget_ms=PATIENT_MS,
        pool={"kv_tiers": HOST_TIER | {"peers": True}},
    ) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        await front.published["r1"].offloads(OFFLOADED)
        front.sees(*engines)
        yield front


@pytest.mark.parametrize("pulling", [FASTER], indirect=True)
async def test_an_idle_engine_pulls_the_prefix_of_a_busy_one(
    pulling: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    explanation = await explanation_of(pulling)
    assert (explanation["replica"], explanation["way"]) == ("r0", "peer")
    chosen, source = explanation["candidates"]
    assert (chosen["peer"], chosen["peer_address"]) == ("r1", engines[1].peer)
    assert (chosen["peer_tokens"], chosen["cached_tokens"]) == (48, 48)
    assert chosen["peer_load"] == pytest.approx(2 * 48 / FASTER)
    assert (source["peer"], source["peer_tokens"], source["peer_load"]) == ("", 0, 0)
    headers = engines[0].headers[-1]
    assert headers[KV_SOURCE_HEADER] == engines[1].peer
    assert headers[KV_TIERS_HEADER] == HOST_ONLY
    assert headers[TIER_TOKENS_HEADER] == "0 0 48"
    assert headers[EXPECTED_CACHED_HEADER] == "48"
    assert await tier_counts(pulling) == {
        ("requests_total", "peer"): 1,
        ("offers_total", "peer", "yes"): 1,
        ("prompt_tokens_total", "peer"): 48,
        ("prompt_tokens_total", "computed"): len(PROMPT) - 48,
    }
    # the other way is to compute the prompt
    ways = {"peer": chosen["predicted_ttft"], "compute": len(PROMPT) / 1000}
    assert chosen["ways"] == pytest.approx(ways)
    measured_s, alternative = explanation["ttft_s"]["engine"], explanation["alternative"]
    assert alternative["replica_id"] == "r0"
    assert alternative["predicted_ttft"] == chosen["ways"]["compute"]
    assert alternative["regret"] == pytest.approx(measured_s - chosen["ways"]["compute"])


@pytest.mark.parametrize("pulling", [SLOWER], indirect=True)
async def test_the_engine_computes_what_takes_longer_to_pull(
    pulling: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    explanation = await explanation_of(pulling)
    assert (explanation["replica"], explanation["way"]) == ("r0", "compute")
    chosen = explanation["candidates"][0]
    assert (chosen["peer_tokens"], chosen["peer_load"], chosen["cached_tokens"]) == (48, 0, 0)
    assert KV_SOURCE_HEADER not in engines[0].headers[-1]
    assert TIER_TOKENS_HEADER not in engines[0].headers[-1]


@pytest.mark.parametrize("pulling", [FASTER], indirect=True)
async def test_a_retry_on_the_source_of_a_pull_loads_from_its_own_tier(
    pulling: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    engines[0].dies_after = 0
    explanation = await explanation_of(pulling)
    assert explanation["replica"] == "r1"
    assert KV_SOURCE_HEADER in engines[0].headers[-1]
    assert KV_SOURCE_HEADER not in engines[1].headers[-1]
    assert KV_TIERS_HEADER not in engines[1].headers[-1]
    assert engines[1].headers[-1][TIER_TOKENS_HEADER] == "48 0 0"


@pytest.mark.parametrize("pulling", [FASTER], indirect=True)
async def test_a_source_that_takes_the_place_of_the_chosen_replica_pulls_nothing(
    pulling: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    engines[0].tells_serve = False  # Ray Serve assigns a replica
    pulling.handle.must_pick = engines[1]
    pulling.sees(*engines)
    explanation = await explanation_of(pulling)
    assert explanation["candidates"][0]["peer_load"] > 0
    assert explanation["replica"] == "r1"
    assert KV_SOURCE_HEADER not in engines[1].headers[-1]


@pytest.mark.parametrize("pulling", [FASTER], indirect=True)
async def test_a_source_that_left_the_board_is_not_pulled_from(
    pulling: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    pulling.sees(engines[0])
    explanation = await explanation_of(pulling)
    assert (explanation["replica"], explanation["way"]) == ("r0", None)
    assert KV_SOURCE_HEADER not in engines[0].headers[-1]


def reports_after(board: LoadBoard, sequence: int) -> bool:
    return board.loads()["r0"].sequence > sequence


# 3 loads of 48 tokens take less time than to compute 48 tokens, and 4 take longer.
QUEUES = 3500.0


@pytest.mark.parametrize("leaves", [False, True], ids=["answered", "cancelled"])
async def test_requests_compute_behind_many_loads_until_these_have_ended(
    redis_url: str, leaves: bool
) -> None:
    engine = FakeEngine("r0", limit=8)
    engine.renderer, engine.host_load_rate, engine.pauses_after = facts(), QUEUES, 0
    prompts = [[*range(start, start + 80)] for start in range(100, 900, 100)]
    async with gateway_before(
        engine, redis_url=redis_url, lookup_budget_ms=PATIENT_MS, pool={"kv_tiers": HOST_TIER}
    ) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        for prompt in prompts:
            await front.published["r0"].offloads(prompt[:48])
        board = front.pool.scheduler.board
        asked: list[asyncio.Task[dict[str, Any]]] = []
        for prompt in prompts[:4]:
            asked.append(asyncio.create_task(explanation_of(front, prompt)))
            await until(lambda: engine.running == len(asked))
            await until(partial(reports_after, board, engine.report().sequence))
        loaded = [TIER_TOKENS_HEADER in headers for headers in engine.headers]
        assert loaded == [True, True, True, False]
        assert engine.headers[-1][KV_TIERS_HEADER] == NO_TIERS
        assert board.loads()["r0"].queue.host_tokens == 3 * 48
        if leaves:
            for request in asked:
                await cancelled(request)
        engine.pauses_after = None
        engine.go_on.set()
        if not leaves:
            ways = [explanation["way"] for explanation in await asyncio.gather(*asked)]
            assert ways == ["host", "host", "host", "compute"]
        await until(lambda: board.loads()["r0"].queue.host_tokens == 0)
        assert (await explanation_of(front, prompts[4]))["way"] == "host"
        assert KV_TIERS_HEADER not in engine.headers[-1]
