"""What Redis' troubles and an engine's nonsense cost a request: no more than knowing less."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.responses import Response

from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    ENGINE_TTFT_HEADER,
    LOAD_HEADER,
    PROMPT_TOKENS_HEADER,
)
from router.board.load import LoadReport, ReplicaQueue
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.ports import free_ports
from tests.router.redis_process import running
from tests.waiting import until

PROMPT = [*range(100, 180)]
POLICY, INDEX_MS = "x-antefix-policy", "x-antefix-index-ms"
BUDGET_MS = 5.0
PLACEMENTS = "antefix_placements_total"


@pytest.fixture
def engines() -> tuple[FakeEngine, FakeEngine]:
    """Two alike, which report how they render."""
    engines = FakeEngine("r0"), FakeEngine("r1")
    for engine in engines:
        engine.renderer = facts()
    return engines


async def headers_of(front: Front) -> Mapping[str, str]:
    """Return the headers of the answer to PROMPT."""
    async with front.post("/v1/completions", prompt=PROMPT) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        told: Mapping[str, str] = answer.headers
    return told


async def test_the_load_report_in_an_answer_updates_the_board_at_once() -> None:
    engine = FakeEngine()
    engine.pauses_after = 1
    async with gateway_before(engine) as front:
        board = front.pool.scheduler.board
        async with front.post(stream=True) as answer:
            load = board.loads()["r0"]
            assert (load.queue.waiting, load.queue.running, load.sequence) == (0, 1, 1)
            engine.go_on.set()
            await answer.read()


@pytest.mark.parametrize("header", [LOAD_HEADER, ENGINE_TTFT_HEADER, PROMPT_TOKENS_HEADER])
@pytest.mark.parametrize("garbage", ["", "1", "soon", "1 2 3 4 5", "9 x 0 0", "\xb2"])
async def test_invalid_headers_of_an_engine_fail_no_request(header: str, garbage: str) -> None:
    engine = FakeEngine()
    sane = {
        PROMPT_TOKENS_HEADER: "80",
        CACHED_TOKENS_HEADER: "16",
        ENGINE_TTFT_HEADER: "0.25",
        LOAD_HEADER: LoadReport(1, ReplicaQueue(0, 0, 0)).to_header(),
    }
    engine.answers = Response("{}", headers={**sane, header: garbage})
    async with gateway_before(engine) as front:
        told = await headers_of(front)
        assert told[POLICY] == "prefix"
        assert told[CACHED_TOKENS_HEADER] == "16"
        assert float(told["x-antefix-ttft-ms"]) > 0
        # it is explained all the same
        await until(lambda: front.gateway.parts.explanations.dropped == 1)
        counted = PLACEMENTS, "prefix", "load"
        assert (counted in await front.metrics()) == (
            header != PROMPT_TOKENS_HEADER or garbage == "1"
        )


async def test_a_frozen_redis_delays_requests_by_the_budget_and_then_not_at_all(
    tmp_path: Path, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    (port,) = free_ports(1)
    with running(tmp_path, port, f"port {port}\n") as server:
        async with gateway_before(
            *engines, redis_url=f"redis://127.0.0.1:{port}/0", lookup_budget_ms=BUDGET_MS
        ) as front:
            await until(lambda: front.pool.reader.renderer.prompt_tokens)
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                told = [await headers_of(front) for _ in range(8)]
                metrics = await front.metrics()
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            # far below what any other client of Redis would wait
            assert all(float(each[INDEX_MS]) < 100 * BUDGET_MS for each in told)
            lookups = "antefix_index_lookups_total"
            assert metrics[lookups, "failed"] >= 3
            assert metrics[lookups, "failed"] + metrics[lookups, "skipped"] == 8
            assert metrics["antefix_index_breaker_open",] == 1
            placed = {name[1:]: v for name, v in metrics.items() if name[0] == PLACEMENTS}
            assert sum(v for (_, signal), v in placed.items() if signal == "load") == 8
            await until(lambda: not front.pool.feeds.index.breaker_open)
            await headers_of(front)
            assert (await front.metrics())["antefix_index_breaker_open",] == 0


async def test_without_redis_requests_go_to_the_last_known_replicas(
    tmp_path: Path, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    (port,) = free_ports(1)
    with running(tmp_path, port, f"port {port}\n") as server:
        async with gateway_before(*engines, redis_url=f"redis://127.0.0.1:{port}/0") as front:
            await until(lambda: front.pool.reader.renderer.prompt_tokens)
            server.process.kill()
            await until(lambda: not front.pool.scheduler.board.loads())
            told = [await headers_of(front) for _ in range(4)]
            async with front.get("/health/live") as live:
                assert live.status == 200
    assert {each[POLICY] for each in told} == {"blind"}
    # what begins alike stays together
    assert len({each["x-antefix-replica"] for each in told}) == 1


async def test_without_known_replicas_any_replica_serves() -> None:
    async with gateway_before(FakeEngine()) as front:
        front.sees()
        told = await headers_of(front)
        assert told["x-antefix-replica"] == "r0"
        assert "x-antefix-predicted-ttft-ms" not in told
