"""What engines say of themselves costs them no place, however often a gateway is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from deployments.gateway.api.endpoints import ENDPOINTS
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.pool import model_cards
from deployments.gateway.pool.model_cards import (
    CREATED,
    ModelCards,
    anthropic_page,
    as_anthropic,
    merged_openapi,
)
from deployments.wire.inference_paths import INFERENCE_PATHS
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, Front, gateway_before
from tests.sentences import assert_sentences
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


async def test_model_cards_are_returned_while_every_slot_is_taken() -> None:
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


async def test_simultaneous_requests_for_models_send_one_request_to_an_engine(
    asked: list[str],
) -> None:
    async with gateway_before(FakeEngine()) as front:
        statuses = await asyncio.gather(*(answers(front, path) for path in PUBLIC * 20))
    assert set(statuses) == {200}
    assert sorted(asked) == ["/openapi.json", "/v1/models"]


async def test_every_gateway_returns_the_same_creation_time_of_a_model(
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


async def test_without_redis_model_cards_come_from_the_last_known_engines() -> None:
    async with gateway_before(FakeEngine()) as front:
        front.goes_blind()
        assert [await answers(front, path) for path in PUBLIC] == [200, 200, 200]


async def test_without_an_engine_names_are_returned_and_the_description_follows_later(
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
        # what was returned once is returned again
        front.sees()
        assert await answers(front, "/openapi.json") == 200


async def test_an_adapter_that_its_engine_does_not_list_has_a_model_card() -> None:
    engine_args = {"enable_lora": True, "lora_modules": [{"name": "sql", "path": "/sql"}]}
    async with (
        gateway_before(FakeEngine(), pool={"engine_args": engine_args}) as front,
        front.get("/v1/models/sql") as answer,
    ):
        assert answer.status == 200
        assert (await answer.json())["id"] == "sql"


async def test_clients_of_anthropic_get_models_in_its_form() -> None:
    client = {"anthropic-version": "2023-06-01", "authorization": "", "x-api-key": KEY}
    async with gateway_before(FakeEngine()) as front:
        async with front.get("/v1/models", headers=client) as answer:
            listed = await answer.json()
        async with front.get(f"/v1/models/{MODEL}", headers=client) as answer:
            one = await answer.json()
        async with front.get("/v1/models/none", headers=client) as answer:
            missing = await answer.json()
            assert (answer.status, answer.headers["request-id"]) == (404, missing["request_id"])
    assert one == {
        "type": "model",
        "id": MODEL,
        "display_name": MODEL,
        "created_at": "2026-11-21T00:00:00Z",
        "max_input_tokens": None,
        "max_tokens": None,
        "lifecycle": "active",
    }
    assert listed == {"data": [one], "has_more": False, "first_id": MODEL, "last_id": MODEL}
    assert missing["type"] == "error" and missing["error"]["type"] == "not_found_error"


LISTED = as_anthropic([{"id": name, "max_model_len": 2048} for name in "abcde"])


def names_of(**asked: str) -> tuple[str, bool]:
    page = anthropic_page(LISTED, asked)
    names = "".join(model["id"] for model in page["data"])
    ends = (names[0], names[-1]) if names else (None, None)
    assert (page["first_id"], page["last_id"]) == ends
    return names, page["has_more"]


@pytest.mark.parametrize(
    ("asked", "names", "has_more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "5"}, "abcde", False),
        ({"limit": "1000"}, "abcde", False),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"after_id": "e"}, "", False),
        ({"limit": "2", "before_id": "e"}, "cd", True),
        ({"limit": "2", "before_id": "c"}, "ab", False),
        ({"before_id": "a"}, "", False),
        ({"after_id": "a", "before_id": "d"}, "bc", False),
    ],
)
def test_a_page_of_models_starts_after_or_ends_before_the_given_one(
    asked: dict[str, str], names: str, has_more: bool
) -> None:
    assert names_of(**asked) == (names, has_more)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("limit", value)
            for value in ("0", "1001", "-1", "many", "", "2.0", "99999999", "\uff12")
        ),
        *((name, value) for name in ("after_id", "before_id") for value in ("z", "")),
    ],
)
def test_invalid_paging_parameters_are_rejected_with_their_field(name: str, value: str) -> None:
    with pytest.raises(ApiError) as refused:
        anthropic_page(LISTED, {name: value})
    assert (refused.value.status, refused.value.param) == (400, name)
    assert_sentences(refused.value.message)


async def test_anthropics_client_reads_every_page_of_models() -> None:
    engine_args = {
        "enable_lora": True,
        "lora_modules": [{"name": name, "path": "/adapter"} for name in ("sql", "law", "med")],
    }
    async with (
        gateway_before(FakeEngine(), pool={"engine_args": engine_args}) as front,
        AsyncAnthropic(base_url=front.url, api_key=KEY, max_retries=0) as client,
    ):
        found = [model.id async for model in client.models.list(limit=1)]
        back = client.models.list(limit=2, before_id=found[-1])
        before = [model.id async for model in back]
    assert sorted(found) == sorted([MODEL, "sql", "law", "med"])
    assert before == [*found[1:3], found[0]]


@pytest.mark.parametrize(
    ("path", "location"),
    [("/v1/models/", "../models"), (f"/v1/models/{MODEL}/", f"../{MODEL}")],
)
async def test_a_trailing_slash_redirects_to_the_path_without_it(path: str, location: str) -> None:
    async with gateway_before(FakeEngine()) as front:
        headers = front.headers
        async with front.http.get(front.url + path, headers=headers, allow_redirects=False) as r:
            assert (r.status, r.headers["location"]) == (307, location)
        async with front.get(path) as followed:
            assert followed.status == 200


async def test_the_description_has_every_endpoint_and_says_which_need_a_key() -> None:
    async with gateway_before(FakeEngine()) as front, front.get("/openapi.json") as answer:
        described = await answer.json()
    own = {endpoint.path for endpoint in ENDPOINTS if endpoint.path not in INFERENCE_PATHS}
    assert described["paths"].keys() == {"/v1/chat/completions", *own}
    assert described["security"] == [{"key": []}, {"x-api-key": []}]
    public = {
        path
        for path, methods in described["paths"].items()
        for of in methods.values()
        if of.get("security") == []
    }
    assert {"/health/live", "/health/ready", "/health/serving", "/openapi.json"} <= public
    assert "/v1/models" not in public and "/antefix/profile" not in public


def test_the_openapi_documents_of_several_pools_are_merged() -> None:
    first = {
        "openapi": "3.1.0",
        "info": {"title": "a", "version": "1"},
        "paths": {"/v1/messages": {"post": 1}, "/internal": {}},
        "components": {"schemas": {"A": 1}},
    }
    second = {**first, "paths": {"/v1/messages": {"post": 2}, "/v2/rerank": {"post": 2}}}
    second["components"] = {"schemas": {"A": 2, "B": 2}}
    merged = merged_openapi([first, second], INFERENCE_PATHS, {"/own": {}})
    expected = {"/v1/messages": {"post": 1}, "/v2/rerank": {"post": 2}, "/own": {}}
    assert merged["paths"] == expected
    assert merged["components"]["schemas"] == {"A": 1, "B": 2}
