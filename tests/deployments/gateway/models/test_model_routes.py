"""A name leads to pools: by weight for new conversations, and a conversation stays where it is."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deployments.fleet.applications import settings_of
from deployments.gateway.intake.keys_file import KeyRights, stored
from deployments.gateway.models.conversations import conversation_of
from deployments.wire.inference_paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import NO_REDIS, TENANT, Front, gateway_before

HALF = {"assistant": {"pools": {"main": 1, "small": 1}, "aliases": ["gpt-5"]}}


def turns(first: str, *later: str) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": first}]
    for text in later:
        messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": text}]
    return messages


async def model_of(front: Front, **fields: Any) -> str:
    """The engine's name of the model that answered."""
    async with front.post(**{"model": "assistant", **fields}) as answer:
        assert answer.status == 200, await answer.text()
        return str(answer.headers["x-antefix-model"])


async def sets(front: Front, **weights: float) -> None:
    """As `antefix update` does."""
    fleet = front.gateway.parts.in_force.fleet
    route = {"assistant": {"pools": weights, "aliases": ["gpt-5"]}}
    settings = settings_of({**fleet.model_dump(mode="json"), "models": route})
    await front.gateway.reconfigure(settings)
    assert not front.gateway.parts.in_force.refused


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0")


@pytest.fixture
def other() -> FakeEngine:
    return FakeEngine("r1", model="candidate")


@pytest.fixture
async def front(engine: FakeEngine, other: FakeEngine, redis_url: str) -> AsyncIterator[Front]:
    async with gateway_before(
        engine, small=other, redis_url=redis_url, models=HALF, lookup_budget_ms=1000.0
    ) as front:
        yield front


@pytest.mark.parametrize("name", ["assistant", "gpt-5", MODEL])
async def test_the_engine_receives_the_name_of_the_model_that_it_serves(
    front: Front, engine: FakeEngine, name: str
) -> None:
    await sets(front, main=1)
    assert await model_of(front, model=name) == MODEL
    sent = json.loads(engine.bodies[-1])
    assert sent["model"] == MODEL and sent["cache_salt"]


async def test_conversations_are_split_and_each_stays_in_its_pool(front: Front) -> None:
    first = {n: await model_of(front, messages=turns(f"question {n}")) for n in range(40)}
    assert min(Counter(first.values()).values()) > 5
    for n in range(40):
        asked = turns(f"question {n}", "and then?")
        assert await model_of(front, messages=asked) == first[n]


async def test_a_conversation_stays_where_it_is_when_weights_change(front: Front) -> None:
    await sets(front, main=1, small=1e-9)
    assert await model_of(front, messages=turns("hello")) == MODEL
    await sets(front, main=1e-9, small=1)
    assert await model_of(front, messages=turns("hello", "again")) == MODEL
    assert await model_of(front, messages=turns("another")) == "candidate"


async def test_a_pool_without_weight_loses_its_conversations_at_once(front: Front) -> None:
    await sets(front, main=1, small=1e-9)
    assert await model_of(front, messages=turns("hello")) == MODEL
    await sets(front, main=0, small=1)
    assert await model_of(front, messages=turns("hello", "again")) == "candidate"


async def test_without_redis_conversations_are_split_by_weight(
    engine: FakeEngine, other: FakeEngine
) -> None:
    async with gateway_before(engine, small=other, redis_url=NO_REDIS, models=HALF) as front:
        first = {n: await model_of(front, messages=turns(f"question {n}")) for n in range(20)}
        assert len(set(first.values())) == 2
        for n, model in first.items():
            assert await model_of(front, messages=turns(f"question {n}", "and?")) == model


async def test_a_decision_is_explained(front: Front) -> None:
    async with front.post(model="gpt-5", messages=turns("hello")) as answer:
        explained = await front.explanation_of(answer.headers)
    assert explained["route"] == {"model": "assistant", "by": "weight", "offers": []}
    assert explained["model"] in (MODEL, "candidate")
    async with front.post(model="gpt-5", messages=turns("hello", "again")) as answer:
        explained = await front.explanation_of(answer.headers)
    assert explained["route"]["by"] == "conversation"


async def test_every_name_is_listed(front: Front) -> None:
    async with front.get("/v1/models") as answer:
        listed = [card["id"] for card in (await answer.json())["data"]]
    assert sorted(listed) == sorted([MODEL, "candidate", "assistant", "gpt-5"])
    for name in listed:
        async with front.get(f"/v1/models/{name}") as answer:
            assert (await answer.json())["id"] == name


async def test_the_error_of_an_unknown_name_lists_the_known_ones(front: Front) -> None:
    async with front.post(model="gpt-6") as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (404, "model_not_found")
    assert "assistant" in error["message"] and "gpt-5" in error["message"]


async def test_a_key_may_use_a_route_by_each_of_its_names(
    engine: FakeEngine, tmp_path: Path
) -> None:
    models = {"assistant": {"pools": {"main": 1}, "aliases": ["gpt-5"]}}
    keys = {"a" * 32: "assistant", "b" * 32: "gpt-5"}
    rights = (stored(TENANT, key, KeyRights(frozenset({name}))) for key, name in keys.items())
    file = tmp_path / "keys"
    file.write_text("".join(each.line() + "\n" for each in rights))
    of_route, of_alias = keys
    async with gateway_before(engine, models=models) as front:
        front.gateway.parts.keys.take(file)
        for key, name, status in (
            (of_route, "assistant", 200),
            (of_route, "gpt-5", 200),
            (of_route, MODEL, 403),
            (of_alias, "gpt-5", 200),
            (of_alias, "assistant", 403),
        ):
            headers = {"authorization": f"Bearer {key}"}
            async with front.post(model=name, headers=headers) as answer:
                assert answer.status == status, (key, name)


SECRET = b"s" * 32


def named(path: str, tenant: str = "t", session: str | None = None, **fields: Any) -> bytes | None:
    return conversation_of(SECRET, path, tenant, fields, session)


def test_a_conversation_is_identified_by_its_beginning() -> None:
    begun = named(CHAT, messages=turns("hi"))
    assert begun == named(CHAT, messages=turns("hi", "and?", "and then?"))
    assert begun != named(CHAT, messages=turns("ho"))
    assert begun != named(CHAT, tenant="u", messages=turns("hi"))
    system = [{"role": "system", "content": "Be brief."}]
    assert begun != named(CHAT, messages=system + turns("hi"))


def test_a_changing_system_block_does_not_identify_a_conversation() -> None:
    def asked(number: int) -> bytes | None:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: {number}"}
        system = [billing, {"type": "text", "text": "Be brief."}]
        return named(MESSAGES, system=system, messages=turns("hi"))

    assert asked(1) == asked(2) != named(MESSAGES, messages=turns("hi"))


def test_every_generating_api_has_conversations_and_embeddings_have_none() -> None:
    assert named(RESPONSES, input="hi") == named(RESPONSES, input="hi", max_output_tokens=3)
    assert named(RESPONSES, input=turns("hi")) == named(RESPONSES, input=turns("hi", "and?"))
    assert named(COMPLETIONS, prompt="a" * 300) == named(COMPLETIONS, prompt="a" * 999)
    assert named(COMPLETIONS, prompt=[1, 2]) != named(COMPLETIONS, prompt=[1, 3])
    assert named("/v1/embeddings", input="hi") is None


def test_null_messages_with_an_input_are_no_messages() -> None:
    begun = named(RESPONSES, input=turns("hi"))
    assert begun == named(RESPONSES, input=turns("hi"), messages=None)
    assert begun != named(RESPONSES, input=turns("ho"), messages=None)


def test_a_session_names_a_conversation_of_any_kind() -> None:
    for path in (CHAT, COMPLETIONS, "/v1/embeddings"):
        one = named(path, session="a", messages=turns("hi"))
        assert one == named(path, session="a", messages=turns("ho")) is not None
        assert one != named(path, session="b", messages=turns("hi"))


@pytest.mark.parametrize("messages", [None, 5, "x", [], [5], [{"role": 5}], {"a": [{}]}])
def test_naming_a_conversation_never_raises_for_any_request(messages: Any) -> None:
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        assert named(path, messages=messages, system=messages, prompt=messages) is not None
