"""How requests are routed and what their answers report, through a real gateway and a real
Redis."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from deployments.gateway.pool.prompt_reader import LONG_BODY_BYTES
from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    EXPECTED_CACHED_HEADER,
    PROMPT_TOKENS_HEADER,
)
from deployments.wire.inference_paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from router.choice.policies import POLICY_NAMES
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import until

# 80 tokens are 5 segments, of which 4 can be reused: the last token is always computed.
PROMPT = [*range(100, 180)]
REUSABLE = 64
# Redis answers within it on however slow a machine.
PATIENT_MS = 1000.0
POLICY, PREDICTED = "x-antefix-policy", "x-antefix-cached-tokens-predicted"
INDEX_MS = "x-antefix-index-ms"


@pytest.fixture
def engines() -> tuple[FakeEngine, FakeEngine]:
    """Two alike, which report how they render."""
    engines = FakeEngine("r0"), FakeEngine("r1")
    for engine in engines:
        engine.renderer = facts()
    return engines


@pytest.fixture
async def front(engines: tuple[FakeEngine, FakeEngine], redis_url: str) -> AsyncIterator[Front]:
    async with gateway_before(
        *engines,
        redis_url=redis_url,
        lookup_budget_ms=PATIENT_MS,
        pool={
            "session_header": "x-user",
            "engine_args": {"lora_modules": [{"name": "adapter", "path": "/adapter"}]},
        },
    ) as front:
        await knows_prompts(front)
        yield front


async def knows_prompts(front: Front) -> None:
    await until(lambda: front.pool.reader.renderer.prompt_tokens)


async def headers_of(
    front: Front, headers: Mapping[str, str] | None = None, **body: Any
) -> Mapping[str, str]:
    """Of the answer to a prompt of PROMPT's tokens, unless the test gives another."""
    fields = {"prompt": PROMPT, **body}
    async with front.post(COMPLETIONS, headers=dict(headers or {}), **fields) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        told: Mapping[str, str] = answer.headers
    return told


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_reports_predicted_and_observed_values(
    front: Front, engines: tuple[FakeEngine, FakeEngine], stream: bool
) -> None:
    await front.published["r1"].caches(PROMPT[:48])
    engines[1].cached_tokens = 48
    told = await headers_of(front, stream=stream)
    assert told["x-antefix-replica"] == "r1"
    assert told[POLICY] == "prefix"
    assert (told[PREDICTED], told[CACHED_TOKENS_HEADER]) == ("48", "48")
    assert told[PROMPT_TOKENS_HEADER] == "80"
    assert told["x-antefix-predicted-ttft-ms"] == "32.0"  # 32 tokens at 1000 a second
    assert float(told["x-antefix-ttft-ms"]) > 0
    assert 0 < float(told[INDEX_MS]) < PATIENT_MS


async def test_the_engine_receives_the_expected_number_of_cached_tokens(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    await front.published["r1"].caches(PROMPT[:48])
    await headers_of(front)
    assert engines[1].headers[-1][EXPECTED_CACHED_HEADER] == "48"


async def test_the_ttft_of_an_unstreamed_answer_is_that_of_its_first_token(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    loop, pause_s = asyncio.get_running_loop(), 0.3
    for engine in engines:
        engine.pauses_after = 1
    began = loop.time()
    request = asyncio.ensure_future(headers_of(front))
    await until(lambda: engines[0].made + engines[1].made == 1)
    await asyncio.sleep(pause_s)
    for engine in engines:
        engine.go_on.set()
    told = await request
    assert float(told["x-antefix-ttft-ms"]) / 1000 <= loop.time() - began - pause_s


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("policy", POLICY_NAMES)
async def test_a_request_may_select_each_policy_and_the_answer_names_it(
    front: Front, policy: str, stream: bool
) -> None:
    told = await headers_of(front, {POLICY: policy}, stream=stream)
    assert told[POLICY] == policy


async def test_a_requested_policy_is_used(front: Front) -> None:
    served = [
        (await headers_of(front, {POLICY: "round_robin"}))["x-antefix-replica"] for _ in range(6)
    ]
    assert served in (["r0", "r1"] * 3, ["r1", "r0"] * 3)


async def test_an_unknown_policy_is_a_400_that_names_it_and_the_known_ones(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    async with front.post(headers={POLICY: "fastest" * 100}) as answer:
        assert answer.status == 400
        error = (await answer.json())["error"]
    assert (error["code"], error["param"]) == ("unknown_policy", POLICY)
    assert "fastest" in error["message"] and len(error["message"]) < 400
    assert all(name in error["message"] for name in POLICY_NAMES)
    assert not engines[0].bodies and not engines[1].bodies


async def test_sessions_are_identified_by_the_header_of_the_fleet_file(front: Front) -> None:
    async def served(user: str) -> str:
        told = await headers_of(front, {POLICY: "session", "x-user": user})
        return told["x-antefix-replica"]

    users = [f"user {number}" for number in range(12)]
    first = [await served(user) for user in users]
    assert set(first) == {"r0", "r1"}
    assert [await served(user) for user in users] == first


async def test_the_fleet_files_policy_holds_and_its_shadow_is_counted_and_not_followed(
    engines: tuple[FakeEngine, FakeEngine], redis_url: str
) -> None:
    pool = {"policy": "round_robin", "shadow_policy": "session"}
    async with gateway_before(*engines, redis_url=redis_url, pool=pool) as front:
        answers = [await headers_of(front, {"x-session-id": "mine"}) for _ in range(6)]
        metrics = await front.metrics()
        told = await front.explanation_of(answers[-1])
    assert {answer[POLICY] for answer in answers} == {"round_robin"}
    assert Counter(answer["x-antefix-replica"] for answer in answers) == {"r0": 3, "r1": 3}
    shadow = "antefix_shadow_decisions_total"
    assert metrics[shadow, "yes", "session"] == metrics[shadow, "no", "session"] == 3
    assert told["shadow"]["policy"] == "session"


async def test_a_prompt_is_sent_to_the_replica_with_the_most_cached_tokens(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    await front.published["r0"].caches(PROMPT[:16])
    await front.published["r1"].caches(PROMPT[:48])
    told = await headers_of(front)
    assert (told["x-antefix-replica"], told[PREDICTED]) == ("r1", "48")
    assert (await headers_of(front))["x-antefix-replica"] == "r1"


async def test_the_longest_of_several_prompts_decides_the_placement(front: Front) -> None:
    await front.published["r1"].caches(PROMPT)
    told = await headers_of(front, prompt=[[1, 2, 3], PROMPT])
    assert told["x-antefix-replica"] == "r1"


async def test_chats_are_routed_by_the_tokens_of_the_engines_template(front: Front) -> None:
    messages = [{"role": "user", "content": "All work and no play makes Jack a dull boy." * 3}]
    prompt_tokens = front.pool.reader.renderer.prompt_tokens
    assert prompt_tokens is not None
    path = "/v1/chat/completions"
    rendered = prompt_tokens.token_ids(path, {"messages": messages})
    assert rendered is not None
    await front.published["r1"].caches(rendered[0])
    async with front.post(path, messages=messages) as answer:
        assert answer.headers["x-antefix-replica"] == "r1"
        assert int(answer.headers[PREDICTED]) == (len(rendered[0]) - 1) // 16 * 16


@pytest.mark.parametrize("salt", ["pepper", "salt", None])
async def test_a_cache_salt_has_separate_cached_prompts(front: Front, salt: str | None) -> None:
    await front.published["r1"].caches(PROMPT, cache_salt="pepper")
    told = await headers_of(front, cache_salt=salt)
    assert told[PREDICTED] == ("64" if salt == "pepper" else "0")


@pytest.mark.parametrize("model", [MODEL, "adapter"])
async def test_a_lora_adapter_has_separate_cached_prompts(
    front: Front, engines: tuple[FakeEngine, FakeEngine], model: str
) -> None:
    for engine in engines:
        engine.answers = JSONResponse({})
    await front.published["r1"].caches(PROMPT, lora="adapter")
    told = await headers_of(front, model=model)
    assert told[PREDICTED] == ("64" if model == "adapter" else "0")


async def test_a_prompt_that_only_the_engine_can_render_is_placed_by_load(front: Front) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:;base64,"}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "x" * 350}]}]
    async with front.post(messages=messages) as answer:
        assert answer.status == 200
        assert answer.headers[POLICY] == "prefix"
    told = await front.explanation_of(answer.headers)
    assert not told["prompt_known"] and told["segments"] == 0
    guess = told["prompt_tokens"]["counted"]
    assert 350 / 4 <= guess <= 600 / 4
    assert all(c["predicted_ttft"] >= guess / 1000 for c in told["candidates"])
    metrics = await front.metrics()
    assert metrics["antefix_placements_total", "prefix", "load"] == 1


def asked_about(image: str) -> list[tuple[str, dict[str, Any]]]:
    """Each API's request with this image, in base64."""
    url = f"data:image/png;base64,{image}"
    source = {"type": "base64", "media_type": "image/png", "data": image}
    chat = {"type": "image_url", "image_url": {"url": url}}
    block: dict[str, Any] = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
    shown = {"type": "input_image", "image_url": url}
    return [
        (CHAT, {"messages": [{"role": "user", "content": [chat]}]}),
        (MESSAGES, {"messages": [{"role": "user", "content": [block]}], "max_tokens": 1}),
        (MESSAGES, {"messages": [{"role": "user", "content": [result]}], "max_tokens": 1}),
        (RESPONSES, {"input": [{"role": "user", "content": [shown]}]}),
    ]


@pytest.mark.parametrize("api", range(4))
@pytest.mark.parametrize(("size", "least", "most"), [(1_000_000, 1000, 1200), (400, 100, 250)])
async def test_an_image_is_not_counted_as_long_text(
    front: Front,
    engines: tuple[FakeEngine, FakeEngine],
    api: int,
    size: int,
    least: int,
    most: int,
) -> None:
    for engine in engines:
        engine.answers = JSONResponse({})
    path, fields = asked_about("A" * size)[api]
    async with front.post(path, **fields) as answer:
        assert answer.status == 200
    told = await front.explanation_of(answer.headers)
    assert least < told["prompt_tokens"]["counted"] < most


@pytest.mark.parametrize("tokens", [[-1], [2**32], [2**62] * 40, [-1] * 200])
async def test_invalid_token_ids_are_left_to_the_engine_to_reject(
    front: Front, engines: tuple[FakeEngine, FakeEngine], tokens: list[int]
) -> None:
    refusal = {"error": {"message": "token id out of vocabulary", "param": "prompt"}}
    for engine in engines:
        engine.answers = JSONResponse(refusal, status_code=400)
    async with front.post(COMPLETIONS, prompt=tokens) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"] == "token id out of vocabulary"


class _Recorder:
    """Stands for PromptTokens; notes in which thread it is asked."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    digest = "recorder"

    def read(self, path: str, fields: Mapping[str, Any], take: object) -> None:
        self.threads.append(threading.get_ident())


async def test_a_long_body_is_rendered_outside_the_event_loop(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = _Recorder()
    monkeypatch.setattr(front.pool.reader.renderer, "prompt_tokens", recorder)
    await headers_of(front)
    await headers_of(front, metadata={"padding": "x" * LONG_BODY_BYTES})
    assert recorder.threads[0] == threading.get_ident() != recorder.threads[1]


async def test_loss_metrics_show_where_reusable_tokens_were_lost(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    await front.published["r1"].caches(PROMPT[:48])
    engines[1].cached_tokens = 32  # a segment went between the decision and the prefill
    board = front.pool.scheduler.board
    await until(lambda: all(load.cache.synced for load in board.loads().values()))
    told = await headers_of(front)
    metrics = await front.metrics()
    loss = {
        name[1]: v for name, v in metrics.items() if name[0].endswith("reuse_loss_tokens_total")
    }
    assert loss == {"engine": 16, "routing": 0, "index": 0}
    new = metrics["antefix_new_prompt_tokens_total",]
    assert sum(loss.values()) + new == REUSABLE - int(told[CACHED_TOKENS_HEADER])
    explained = await front.explanation_of(told)
    assert (explained["reuse_loss_tokens"], explained["new_tokens"]) == (loss, new)
    assert explained["cached_tokens"] == {"predicted": 48, "in_index": 48, "confirmed": 32}


async def test_tokens_cached_at_another_replica_are_lost_by_routing(front: Front) -> None:
    await front.published["r0"].caches(PROMPT[:48])
    while (told := await headers_of(front, {POLICY: "random"}))["x-antefix-replica"] == "r0":
        pass
    explained = await front.explanation_of(told)
    assert explained["reuse_loss_tokens"]["routing"] == 48


async def test_a_cache_that_was_reset_is_no_longer_predicted(front: Front) -> None:
    await front.published["r1"].caches(PROMPT)
    assert (await headers_of(front))[PREDICTED] == "64"
    await front.published["r1"].forgets()
    other = [*PROMPT[:-1], 1]  # the last request announced all of its segments
    explained = await front.explanation_of(await headers_of(front, prompt=other))
    assert {c["confirmed_tokens"] for c in explained["candidates"]} == {0}


async def test_requests_of_a_burst_follow_the_first_before_the_index_knows(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    for engine in engines:
        engine.pauses_after = 0
    asked = [asyncio.ensure_future(headers_of(front)) for _ in range(2)]
    await until(lambda: len(engines[0].bodies) + len(engines[1].bodies) == 2)
    for engine in engines:
        engine.go_on.set()
    told = await asyncio.gather(*asked)
    assert len({each["x-antefix-replica"] for each in told}) == 1
    assert sorted(each[PREDICTED] for each in told) == ["0", "64"]


async def test_an_answer_without_tokens_is_relayed_and_not_learned_from(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    for engine in engines:
        engine.answers = Response(json.dumps({"tokens": [1]}), media_type="application/json")
    told = await headers_of(front)
    assert PROMPT_TOKENS_HEADER not in told
    metrics = await front.metrics()
    assert ("antefix_placements_total", "prefix", "index") not in metrics
    assert metrics["antefix_prompt_tokens_total",] == 0
    assert front.pool.scheduler.correction.error is None
