"""An adapter that is loaded through one gateway is served by all, and never with other weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from deployments.engine.adapters.adapter_files import WEIGHTS, UnusableAdapter
from deployments.gateway.inquiries import adapter_loads
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.keys_file import KeyRights
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, REDIS_NAME, Front, gateway_before
from tests.fakes.loras import write_adapter
from tests.sentences import assert_sentences
from tests.waiting import until

REDIS_KEY = f"{{afx:{REDIS_NAME}}}:1:adapters"


@pytest.fixture
def engines(tmp_path: Path) -> tuple[FakeEngine, FakeEngine]:
    sources = [str(tmp_path)]
    return FakeEngine("r0", adapter_sources=sources), FakeEngine("r1", adapter_sources=sources)


@pytest.fixture
async def fronts(
    engines: tuple[FakeEngine, FakeEngine], redis_url: str, tmp_path: Path
) -> AsyncIterator[tuple[Front, Front]]:
    pool = {"adapters": {"sources": [str(tmp_path)]}}
    async with (
        gateway_before(*engines, redis_url=redis_url, pool=pool, lookup_budget_ms=1000.0) as first,
        gateway_before(redis_url=redis_url, pool=pool, lookup_budget_ms=1000.0) as second,
    ):
        await until(lambda: len(second.pool.scheduler.board.loads()) == 2)
        yield first, second


async def loads(
    front: Front, name: str, folder: Path, key: str = KEY, **more: Any
) -> tuple[int, dict[str, Any]]:
    body = {"lora_name": name, "lora_path": str(folder), **more}
    headers = {"authorization": f"Bearer {key}"}
    async with front.http.post(
        front.url + "/v1/load_lora_adapter", json=body, headers=headers
    ) as answer:
        return answer.status, await answer.json()


async def unloads(front: Front, name: str) -> tuple[int, dict[str, Any]]:
    body = {"lora_name": name}
    async with front.http.post(
        front.url + "/v1/unload_lora_adapter", json=body, headers=front.headers
    ) as answer:
        return answer.status, await answer.json()


async def status_and_model(front: Front, model: str, **more: Any) -> tuple[int, str]:
    """Its status, and the engine's name of the model that answered."""
    async with front.post(model=model, **more) as answer:
        await answer.read()
        return answer.status, answer.headers.get("x-antefix-model", "")


def has_both(front: Front) -> bool:
    """Whether a gateway knows of two adapters in its engines' memory."""
    loads = front.pool.scheduler.board.loads().values()
    return sum(len(load.adapters.resident) for load in loads) == 2


async def names(front: Front) -> list[str]:
    async with front.get("/v1/models") as answer:
        return [card["id"] for card in (await answer.json())["data"]]


async def test_every_gateway_serves_a_loaded_adapter_at_once(
    fronts: tuple[Front, Front], engines: tuple[FakeEngine, FakeEngine], tmp_path: Path
) -> None:
    first, second = fronts
    status, told = await loads(first, "sql", write_adapter(tmp_path / "sql"))
    assert status == 200, told
    engine_name = f"sql@{told['sql']['digest']}"
    assert await status_and_model(second, "sql") == (200, engine_name)
    assert await status_and_model(first, "sql") == (200, engine_name)
    for engine in engines:
        for body in engine.bodies:
            assert json.loads(body)["model"] == engine_name
    assert await names(second) == [MODEL, "sql"]
    async with second.get("/v1/models/sql") as answer:
        card = await answer.json()
    assert (card["id"], card["parent"], card["root"]) == ("sql", MODEL, str(tmp_path / "sql"))
    assert await status_and_model(first, MODEL) == (200, MODEL)


async def test_a_lost_replica_does_not_prevent_a_load_on_another(
    fronts: tuple[Front, Front], engines: tuple[FakeEngine, FakeEngine], tmp_path: Path
) -> None:
    first, _ = fronts
    lost, other = engines
    other.running = 3  # so the lost one is asked first
    await until(
        lambda: max(one.queue.running for one in first.pool.scheduler.board.loads().values()) == 3
    )
    await lost.stop()
    status, told = await loads(first, "sql", write_adapter(tmp_path / "sql"))
    assert status == 200, told
    assert [len(engine.loras.loads) for engine in engines] == [0, 1]
    await other.stop()
    status, told = await loads(first, "sql2", write_adapter(tmp_path / "sql2", b"2"))
    assert (status, told["error"]["code"]) == (502, "adapter_not_loaded")


async def test_a_load_has_one_deadline_for_all_replicas(
    fronts: tuple[Front, Front],
    engines: tuple[FakeEngine, FakeEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried, over = 0, asyncio.Event()

    async def hang(name: str, source: str) -> None:
        nonlocal tried
        tried += 1
        await over.wait()
        raise UnusableAdapter("nobody waits for it")

    for engine in engines:
        monkeypatch.setattr(engine.adapters, "fetch", hang)
    monkeypatch.setattr(adapter_loads, "LOAD_TIMEOUT_S", 0.3)
    status, told = await loads(fronts[0], "sql", write_adapter(tmp_path / "sql"))
    over.set()
    assert (status, told["error"]["code"], tried) == (502, "adapter_not_loaded", 1)


async def test_a_large_body_may_name_an_adapter_that_its_gateway_does_not_know(
    fronts: tuple[Front, Front], tmp_path: Path
) -> None:
    first, second = fronts
    await loads(first, "sql", write_adapter(tmp_path / "sql"))
    long = [{"role": "user", "content": "word " * 40_000}]
    assert (await status_and_model(second, "sql", messages=long))[0] != 404
    assert (await status_and_model(second, "sql2", messages=long))[0] == 404


async def test_requests_go_to_the_replica_that_has_loaded_the_adapter(
    fronts: tuple[Front, Front], engines: tuple[FakeEngine, FakeEngine], tmp_path: Path
) -> None:
    first, _ = fronts
    for name in "ab":
        await loads(first, name, write_adapter(tmp_path / name, name.encode()))
    for front in fronts:  # once its engines' leases say so
        await until(partial(has_both, front))
    for _ in range(10):
        for front in fronts:
            for name in "ab":
                assert (await status_and_model(front, name))[0] == 200
    assert sum(len(engine.loras.loads) for engine in engines) == 2


async def test_another_replica_loads_the_adapter_for_its_first_request(
    fronts: tuple[Front, Front], engines: tuple[FakeEngine, FakeEngine], tmp_path: Path
) -> None:
    first, _ = fronts
    await loads(first, "sql", write_adapter(tmp_path / "sql"))
    (has,) = [engine for engine in engines if engine.loras.known]
    has.dies_after = 0
    assert (await status_and_model(first, "sql"))[0] == 200
    assert all(engine.loras.known for engine in engines)


async def test_replaced_weights_are_a_different_adapter(
    fronts: tuple[Front, Front], engines: tuple[FakeEngine, FakeEngine], tmp_path: Path
) -> None:
    first, second = fronts
    folder = write_adapter(tmp_path / "sql", b"old")
    await loads(first, "sql", folder)
    _, before = await status_and_model(second, "sql")
    write_adapter(folder, b"new")
    status, told = await loads(first, "sql", folder)
    assert (status, told["error"]["code"]) == (400, "adapter_exists")
    assert (await loads(first, "sql", folder, load_inplace=True))[0] == 200
    await second.gateway.parts.adapters.refresh()
    for front in fronts:
        _, after = await status_and_model(front, "sql")
        assert after != before
    for engine in engines:
        for name, copy in engine.loras.known.items():
            wanted = b"old" if name == before else b"new"
            assert (copy / WEIGHTS).read_bytes() == wanted


async def test_files_that_change_without_a_load_are_not_served_by_a_new_replica(
    fronts: tuple[Front, Front], engines: tuple[FakeEngine, FakeEngine], tmp_path: Path
) -> None:
    first, _ = fronts
    folder = write_adapter(tmp_path / "sql", b"old")
    await loads(first, "sql", folder)
    write_adapter(folder, b"new")
    assert (await status_and_model(first, "sql"))[0] == 200
    (has,) = [engine for engine in engines if engine.loras.known]
    has.dies_after = 0
    async with first.post(model="sql") as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (503, "adapter_unavailable")
    assert "load it again" in error["message"]


async def test_an_unloaded_adapter_is_removed_from_every_gateway(
    fronts: tuple[Front, Front], tmp_path: Path
) -> None:
    first, second = fronts
    await loads(first, "sql", write_adapter(tmp_path / "sql"))
    assert (await status_and_model(second, "sql"))[0] == 200
    assert (await unloads(first, "sql"))[0] == 200
    await second.gateway.parts.adapters.refresh()
    for front in fronts:
        assert (await status_and_model(front, "sql"))[0] == 404
        assert await names(front) == [MODEL]
    status, told = await unloads(first, "sql")
    assert (status, told["error"]["code"]) == (404, "unknown_adapter")
    assert_sentences(told["error"]["message"])


async def test_loaded_adapters_survive_the_loss_of_redis_data(
    fronts: tuple[Front, Front], redis_url: str, tmp_path: Path
) -> None:
    first, second = fronts
    await loads(first, "sql", write_adapter(tmp_path / "sql"))
    assert (await status_and_model(second, "sql"))[0] == 200
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        await until(lambda: bool(client.exists(REDIS_KEY)))
        for front in fronts:
            await front.gateway.parts.adapters.refresh()
            assert (await status_and_model(front, "sql"))[0] == 200


async def test_a_writer_to_redis_cannot_add_an_adapter(
    fronts: tuple[Front, Front], redis_url: str, tmp_path: Path
) -> None:
    first, _ = fronts
    await loads(first, "sql", write_adapter(tmp_path / "sql"))
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        value = client.hget(REDIS_KEY, "sql")
        assert isinstance(value, str)
        client.hset(REDIS_KEY, "evil", value)
        client.hset(REDIS_KEY, "worse", value.replace("sql", "worse"))
        client.incr(f"{REDIS_KEY}_version")
    for name in ("evil", "worse"):
        assert (await status_and_model(first, name))[0] == 404
    assert (await status_and_model(first, "sql"))[0] == 200


async def test_keys_restrict_adapters_like_models(
    fronts: tuple[Front, Front], tmp_path: Path
) -> None:
    first, _ = fronts
    await loads(first, "sql", write_adapter(tmp_path / "sql"))
    check = first.gateway.parts.pools.check
    assert check(KeyRights(models=frozenset({"sql"})), "sql").name == "sql"
    with pytest.raises(ApiError) as refused:
        check(KeyRights(models=frozenset({MODEL})), "sql")
    assert refused.value.status == 403


async def test_only_operators_load_and_list(fronts: tuple[Front, Front], tmp_path: Path) -> None:
    first, _ = fronts
    status, told = await loads(first, "sql", write_adapter(tmp_path / "sql"), OTHER_KEY)
    assert (status, told["error"]["code"]) == (403, "not_an_operator")
    headers = {"authorization": f"Bearer {OTHER_KEY}"}
    async with first.get("/antefix/adapters", headers) as answer:
        assert answer.status == 403


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"lora_name": MODEL}, "invalid_value"),
        ({"lora_name": "a b"}, "invalid_value"),
        ({"lora_name": "a#b"}, "invalid_value"),
        ({"lora_name": ""}, "missing_value"),
        ({"lora_name": 7}, "missing_value"),
        ({"lora_path": None}, "missing_value"),
        ({"lora_path": "/etc"}, "unusable_adapter"),
        ({"model": "another"}, "invalid_value"),
    ],
)
async def test_wrong_loads_are_refused_and_change_nothing(
    fronts: tuple[Front, Front], tmp_path: Path, fields: dict[str, Any], code: str
) -> None:
    first, _ = fronts
    body = {"lora_name": "sql", "lora_path": str(write_adapter(tmp_path / "sql")), **fields}
    async with first.http.post(
        first.url + "/v1/load_lora_adapter", json=body, headers=first.headers
    ) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (400, code)
    assert_sentences(error["message"])
    assert await names(first) == [MODEL]


async def test_a_fleet_without_adapter_sources_rejects_a_load(
    redis_url: str, tmp_path: Path
) -> None:
    async with gateway_before(FakeEngine("r0"), redis_url=redis_url) as front:
        status, told = await loads(front, "sql", write_adapter(tmp_path / "sql"))
        assert (status, told["error"]["code"]) == (400, "no_adapters")
        assert_sentences(told["error"]["message"])
