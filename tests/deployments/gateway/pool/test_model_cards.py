"""What engines say of themselves costs them no place, however often a gateway is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deployments.gateway.pool import model_cards
from deployments.gateway.pool.model_cards import CREATED, ModelCards
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import until

PUBLIC = ("/openapi.json", "/v1/models", f"/v1/models/{MODEL}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that engines were asked for."""
    paths: list[str] = []
    ask = ModelCards._ask

    async def counted(self: ModelCards, path: str) -> dict[str, Any]:
        paths.append(path)
        return await ask(self, path)

    monkeypatch.setattr(ModelCards, "_ask", counted)
    return paths


async def answers(front: Front, path: str) -> int:
    async with front.get(path) as answer:
        return int(answer.status)


async def test_they_are_told_while_every_place_is_taken() -> None:
    engine = FakeEngine(limit=1)
    engine.pauses_after = 0
    async with gateway_before(engine, pool={"max_ongoing_requests": 1}) as front:
        busy = asyncio.ensure_future(answers_chat(front))
        await until(lambda: engine.running == 1)
        async with asyncio.timeout(60):
            assert [await answers(front, path) for path in PUBLIC] == [200, 200, 200]
        assert not busy.done()
        engine.go_on.set()
        assert await busy == 200


async def answers_chat(front: Front) -> int:
    async with front.post() as answer:
        return int(answer.status)


async def test_many_who_ask_are_one_question(asked: list[str]) -> None:
    async with gateway_before(FakeEngine()) as front:
        statuses = await asyncio.gather(*(answers(front, path) for path in PUBLIC * 20))
    assert set(statuses) == {200}
    assert sorted(asked) == ["/openapi.json", "/v1/models"]


async def test_a_model_was_created_at_one_time_whichever_gateway_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_cards, "KEPT_S", 0.0)
    engine = FakeEngine()
    created = set()
    async with gateway_before(engine) as front, gateway_before(FakeEngine()) as other:
        async with other.get("/v1/models") as answer:
            created |= {card["created"] for card in (await answer.json())["data"]}
        for path in ("/v1/models", f"/v1/models/{MODEL}", "/v1/models"):
            async with front.get(path) as answer:
                told = await answer.json()
            created |= {card["created"] for card in told.get("data", [told])}
        assert engine.cards_told > 1
        front.sees()
        async with front.get("/v1/models") as answer:
            created |= {card["created"] for card in (await answer.json())["data"]}
    assert created == {CREATED}


async def test_without_redis_the_engines_that_were_last_known_are_asked() -> None:
    async with gateway_before(FakeEngine()) as front:
        front.goes_blind()
        assert [await answers(front, path) for path in PUBLIC] == [200, 200, 200]


async def test_without_an_engine_the_names_are_told_and_the_description_comes_later(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cards, "RETRY_S", 0.0)
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        front.sees()
        async with front.get("/openapi.json") as answer:
            assert answer.status == 503
            assert answer.headers["retry-after"] == "5"
        assert await answers(front, f"/v1/models/{MODEL}") == 200
        front.sees(engine)
        assert await answers(front, "/openapi.json") == 200
        # what was told once is told on
        front.sees()
        assert await answers(front, "/openapi.json") == 200


async def test_an_adapter_that_its_engine_does_not_name_has_a_card() -> None:
    engine_args = {"enable_lora": True, "lora_modules": [{"name": "sql", "path": "/sql"}]}
    async with (
        gateway_before(FakeEngine(), pool={"engine_args": engine_args}) as front,
        front.get("/v1/models/sql") as answer,
    ):
        assert answer.status == 200
        assert (await answer.json())["id"] == "sql"
