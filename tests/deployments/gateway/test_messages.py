"""Anthropic's API through a gateway, as its own client uses it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from starlette.responses import JSONResponse

from deployments.gateway.answer import one_try
from deployments.prompt import MessagesFacts, PromptTokens
from deployments.wire.inference_paths import COUNT_TOKENS, MESSAGES
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, Front, gateway_before
from tests.fakes.limited_front import limited
from tests.waiting import until

HI: Any = [{"role": "user", "content": "hi"}]
ASKED: Any = {"model": MODEL, "max_tokens": 5, "messages": HI}
BAD = anthropic.BadRequestError
TEXT = "t1 t2 t3 t4 t5 "
FACTS = facts(messages=MessagesFacts(False, "none"), max_model_len=100_000)


@pytest_asyncio.fixture
async def client(front: Front) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=front.url, api_key=KEY, max_retries=0) as client:
        yield client


def text_of(message: Any) -> str:
    """Return the text of a message that has one block."""
    (block,) = message.content
    assert block.type == "text"
    return str(block.text)


async def test_a_message_is_answered_streamed_or_unstreamed(client: AsyncAnthropic) -> None:
    whole = await client.messages.create(**ASKED)
    async with client.messages.stream(**ASKED) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        assert text_of(message) == TEXT
        assert (message.role, message.model, message.stop_reason) == (
            "assistant",
            MODEL,
            "max_tokens",
        )


async def test_an_answer_has_the_id_of_its_request(client: AsyncAnthropic) -> None:
    raw = await client.messages.with_raw_response.create(**ASKED)
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    assert (await raw.parse())._request_id == raw.headers["request-id"]


async def test_the_engine_gets_the_clients_body_and_the_tenants_salt(
    client: AsyncAnthropic, first: FakeEngine
) -> None:
    await client.messages.create(**ASKED)
    sent = json.loads(first.bodies[0])
    assert sent.pop("cache_salt")
    assert sent == ASKED
    assert not {"x-api-key", "anthropic-version"} & first.headers[0].keys()


@pytest.mark.parametrize(
    ("key", "changed", "kind", "type_", "code"),
    [
        ("wrong", {}, anthropic.AuthenticationError, "authentication_error", "invalid_api_key"),
        (KEY, {"model": "no"}, anthropic.NotFoundError, "not_found_error", "model_not_found"),
        (KEY, {"messages": []}, BAD, "invalid_request_error", "empty_array"),
        # the engine's own
        (
            KEY,
            {"max_tokens": 0},
            anthropic.BadRequestError,
            "invalid_request_error",
            "invalid_value",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_has_the_form_that_the_client_reads(
    front: Front, key: str, changed: Any, kind: Any, type_: str, code: str, stream: bool
) -> None:
    async with AsyncAnthropic(base_url=front.url, api_key=key, max_retries=0) as client:
        with pytest.raises(kind) as raised:
            await client.messages.create(**{**ASKED, **changed}, stream=stream)
    error = raised.value
    assert error.body["type"] == "error" and error.body["error"]["type"] == type_
    assert error.body["error"]["code"] == code
    assert error.request_id == error.body["request_id"] == error.response.headers["x-request-id"]


async def test_the_client_gets_its_answer_despite_a_lost_engine(
    client: AsyncAnthropic,
    first: FakeEngine,
    second: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(one_try, "PLACE_AGAIN_S", 60.0)
    first.dies_after = 2
    async with client.messages.stream(**ASKED) as stream:
        message = await stream.get_final_message()
    assert text_of(message) == TEXT
    # message_start, content_block_start and two tokens
    assert [known.events for known in second.resumed_with] == [4]


async def test_a_stream_that_no_engine_resumes_ends_with_an_error(
    client: AsyncAnthropic, first: FakeEngine
) -> None:
    first.offers_resumable, first.dies_after = False, 2
    with pytest.raises(anthropic.APIStatusError) as raised:
        async with client.messages.stream(**ASKED) as stream:
            await stream.get_final_message()
    body: Any = raised.value.body
    assert body["error"]["code"] == "engine_unavailable"


async def test_a_request_is_retried_if_its_engine_reports_that_it_is_dead(
    client: AsyncAnthropic, first: FakeEngine, second: FakeEngine
) -> None:
    first.tells_death_after = 2
    async with client.messages.stream(**ASKED) as stream:
        message = await stream.get_final_message()
    assert text_of(message) == TEXT
    assert second.resumed_with


async def test_an_engine_counts_tokens_until_the_gateway_can(
    client: AsyncAnthropic, first: FakeEngine
) -> None:
    first.answers = JSONResponse({"input_tokens": 7})
    counted = await client.messages.count_tokens(model=MODEL, messages=HI)
    assert counted.input_tokens == 7
    assert len(first.bodies) == 1


@pytest.mark.parametrize("length", [1, 2000])
async def test_a_gateway_counts_tokens_itself(redis_url: str, length: int) -> None:
    """Without an engine, however long the prompt is, and for no tokens of the budget."""
    engine = FakeEngine()
    engine.renderer = FACTS
    text = "hello there " * length
    messages: Any = [{"role": "user", "content": text}]
    limits = {"limits": {"requests_per_minute": 1, "tokens_per_minute": 1}}
    async with limited(redis_url, engine, limits) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        async with front.post(COUNT_TOKENS, messages=messages) as answer:
            counted = await answer.json()
            assert answer.status == 200 and answer.headers["request-id"]
        assert not engine.bodies
        counts = {path: ours(path, messages) for path in (COUNT_TOKENS, MESSAGES)}
        assert counts == dict.fromkeys(counts, counted["input_tokens"])
        assert counted["input_tokens"] > 2 * length
        metrics = await front.metrics()
    assert metrics["antefix_requests_total", "ok", "interactive"] == 1


def ours(path: str, messages: Any) -> int:
    (ids,) = PromptTokens(FACTS).token_ids(path, {"messages": messages}) or [[]]
    return len(ids)


async def test_the_gateway_asks_an_engine_for_unknown_token_counts() -> None:
    engine = FakeEngine()
    engine.renderer = facts(messages=MessagesFacts(False, "none"))
    engine.answers = JSONResponse({"input_tokens": 7})
    image = [{"type": "image", "source": {"type": "base64", "data": "AA=="}}]
    async with gateway_before(engine) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        async with front.post(
            COUNT_TOKENS, messages=[{"role": "user", "content": image}]
        ) as answer:
            assert await answer.json() == {"input_tokens": 7}
