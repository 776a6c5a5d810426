"""`antefix verify` against a real gateway and a real Redis, before engines that are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.gateway import verify
from cli.main import app
from deployments.gateway.record import explanations
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, TENANT, Front, gateway_before
from tests.ports import free_ports
from tests.waiting import until

REUSED = 256
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verify, "BETWEEN_QUESTIONS_S", 0.01)
    # a busy machine is no Redis outage, and no explanation that is not kept
    monkeypatch.setattr(explanations, "REDIS_TIMEOUT_S", 60.0)
    monkeypatch.setattr(verify, "EXPLAINED_WITHIN_S", 60.0)
    monkeypatch.setattr("tests.fakes.completions.LONGEST_PROMPT", 100_000)
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def antefix(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments])


async def verified(front: Front, *arguments: str) -> Result:
    """As a client elsewhere: the gateway runs in this thread."""
    address = ("--base-url", f"{front.url}/v1", "--api-key", KEY)
    return await asyncio.to_thread(antefix, *address, *arguments)


@asynccontextmanager
async def fleet(redis_url: str, *engines: FakeEngine, **pool: Any) -> AsyncIterator[Front]:
    for engine in engines:
        engine.renderer = facts(max_model_len=8192)
    async with gateway_before(
        *engines, redis_url=redis_url, lookup_budget_ms=1000.0, pool=pool
    ) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        yield front


@asynccontextmanager
async def caching(
    front: Front, engine: FakeEngine, holder: FakeEngine | None = None
) -> AsyncIterator[None]:
    """The first prompt that `engine` computes is cached, there or by `holder`, and published."""

    async def caches() -> None:
        await until(lambda: engine.bodies)
        renderer = front.pool.reader.renderer.prompt_tokens
        assert renderer is not None
        prompts = renderer.token_ids(CHAT, json.loads(engine.bodies[0]))
        assert prompts
        await front.published[(holder or engine).replica_id].caches(prompts[0])
        if holder is None:
            engine.cached_tokens = REUSED

    task = asyncio.create_task(caches())
    yield
    await task


async def test_the_second_question_is_a_prefix_hit(redis_url: str) -> None:
    engine = FakeEngine()
    async with fleet(redis_url, engine) as front, caching(front, engine):
        result = await verified(front)
    assert result.exit_code == ExitCode.OK, result.output
    ready, first, again, hit, sampled = result.stdout.splitlines()
    assert ready.startswith("ready") and MODEL in ready
    assert first.startswith("first time") and "; 0 of" in first
    assert again.startswith("again") and f"; {REUSED} of" in again and "policy prefix" in again
    assert hit.startswith("prefix hit") and f"engine reported {REUSED}" in hit
    assert sampled.startswith("sampled")


async def test_json_output_is_one_object(redis_url: str) -> None:
    engine = FakeEngine()
    async with fleet(redis_url, engine) as front, caching(front, engine):
        result = await verified(front, "-o", "json")
    told = json.loads(result.stdout)
    assert told["model"] == MODEL
    assert told["first"]["cached_tokens"] == 0
    assert told["again"]["cached_tokens"] == REUSED
    assert told["again"]["replica"] == told["sampled"]["replica"] == engine.replica_id


async def test_the_sampler_is_also_tested_and_its_failure_is_reported_separately(
    redis_url: str,
) -> None:
    engine = FakeEngine()
    engine.dies_of = "top_p"
    async with fleet(redis_url, engine) as front, caching(front, engine):
        result = await verified(front)
    assert result.exit_code == ExitCode.FOUND
    assert result.stdout.splitlines()[-1].startswith("prefix hit")
    assert "a request with temperature 0.7 and top_p 0.9 failed" in result.stderr
    assert "VLLM_USE_FLASHINFER_SAMPLER=0" in result.stderr


async def test_each_run_asks_different_questions(redis_url: str) -> None:
    engine = FakeEngine()
    async with fleet(redis_url, engine) as front:
        for _ in range(2):
            await verified(front)
    starts = [json.loads(body)["messages"][0]["content"][:40] for body in engine.bodies]
    assert len(starts) == 2 * (1 + len(verify.QUESTIONS))
    assert len(set(starts)) == 2


async def test_an_engine_that_recomputes_the_whole_prompt_is_named(redis_url: str) -> None:
    async with fleet(redis_url, FakeEngine("r7")) as front:
        result = await verified(front)
    assert result.exit_code == ExitCode.FOUND
    assert "no prefix hit" in result.stderr and "r7 recomputed all" in result.stderr
    assert "prefix caching" in result.stderr


async def test_reuse_that_is_missing_in_the_index_is_not_a_hit(redis_url: str) -> None:
    engine = FakeEngine()
    engine.cached_tokens = REUSED
    async with fleet(redis_url, engine) as front:
        result = await verified(front, "-o", "json")
    assert result.exit_code == ExitCode.FOUND
    error = json.loads(result.stdout)["error"]
    assert f"reused {REUSED} tokens that the index did not have" in error["message"]
    assert "KV events" in error["remedy"]
    # this fleet is on a remote machine: helm test says the same in a pod
    assert "antefix logs" not in error["remedy"] and "pods" in error["remedy"]


async def test_a_policy_that_ignores_the_prefix_is_named(redis_url: str) -> None:
    idle, busy = FakeEngine("r0"), FakeEngine("r1")
    busy.running = 3
    async with (
        fleet(redis_url, idle, busy, policy="least_loaded") as front,
        caching(front, idle, holder=busy),
    ):
        result = await verified(front)
    assert result.exit_code == ExitCode.FOUND
    assert "another replica had the prefix" in result.stderr
    assert "least_loaded" in result.stderr


async def test_prompts_that_gateways_cannot_tokenize_are_not_a_hit(redis_url: str) -> None:
    async with gateway_before(FakeEngine(), redis_url=redis_url) as front:
        result = await verified(front)
    assert result.exit_code == ExitCode.FOUND
    assert "main, so they place them by load only" in result.stderr


async def test_engines_without_prefix_caching_are_reported(redis_url: str) -> None:
    engine = FakeEngine()
    async with fleet(redis_url, engine) as front:
        engine.segment_tokens = 0
        await until(lambda: not front.pool.scheduler.board.segment_tokens)
        result = await verified(front)
    assert result.exit_code == ExitCode.FOUND
    assert "pool main has no prefix index" in result.stderr
    assert "enable_prefix_caching" in result.stderr


async def test_verify_names_the_pool_that_is_not_ready_in_time(
    redis_url: str,
) -> None:
    async with gateway_before(redis_url=redis_url) as front:
        result = await verified(front, "--timeout", "3")
    assert result.exit_code == ExitCode.NOT_READY
    waiting, failure, remedy = result.stderr.splitlines()
    assert "waiting for a replica of main" in waiting
    assert failure.startswith("Error: the fleet was not ready within 3 s")
    assert "--timeout" in remedy


async def test_without_redis_no_request_is_explained() -> None:
    async with gateway_before(FakeEngine()) as front:
        result = await verified(front)
    assert result.exit_code == ExitCode.FAILED
    assert "Redis, which stores explanations, is not responding" in result.stderr


@pytest.mark.parametrize("tokens", [0, 1], ids=["before the first token", "after it"])
async def test_an_answer_that_breaks_is_an_error_with_its_remedy(
    redis_url: str, tokens: int
) -> None:
    engine = FakeEngine()
    engine.dies_after, engine.offers_resumable = tokens, False
    async with gateway_before(engine, redis_url=redis_url) as front:
        result = await verified(front)
    assert result.exit_code == ExitCode.FAILED
    assert len(result.stderr.splitlines()) == 2
    assert "see the logs of its gateways" in result.stderr


@pytest.mark.parametrize(
    "text", [f"{TENANT}={KEY}", f"{TENANT}={KEY},other=sk-o", f"\n{TENANT} = {KEY}\nother=sk-o\n"]
)
async def test_the_first_key_of_a_file_is_used(redis_url: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "api-keys"
    file.write_text(text)
    engine = FakeEngine()
    async with fleet(redis_url, engine) as front, caching(front, engine):
        arguments = ("--base-url", front.url, "--api-key-file", str(file))
        result = await asyncio.to_thread(antefix, *arguments)
    assert result.exit_code == ExitCode.OK, result.output


async def test_an_unknown_key_is_reported() -> None:
    async with gateway_before(FakeEngine()) as front:
        arguments = ("--base-url", front.url, "--api-key", "sk-wrong")
        result = await asyncio.to_thread(antefix, *arguments)
    assert result.exit_code == ExitCode.FAILED
    assert "401: The API key is not valid" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("\n", "contains no usable API key")]
)
def test_a_file_without_a_key_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "api-keys"
    if text is not None:
        file.write_text(text)
    result = antefix("--base-url", "http://127.0.0.1:1/v1", "--api-key-file", str(file))
    assert result.exit_code == ExitCode.FAILED
    assert f"{file} {message}" in result.stderr


def test_an_address_that_does_not_answer_is_reported() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/v1"
    result = antefix("--base-url", url, "--api-key", KEY, "--timeout", "0")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "Connection refused" in result.stderr


def test_the_error_without_a_fleet_and_an_address_says_how_to_start_a_fleet() -> None:
    result = antefix()
    assert result.exit_code == ExitCode.NOT_RUNNING
    assert "antefix up" in result.stderr
