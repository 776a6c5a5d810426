"""A canary that is worse is off within twenty of its requests, everywhere, and no request fails."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deployments.fleet.applications import settings_of
from deployments.fleet.settings.model_names import ModelRoute
from deployments.gateway.models.canaries import KEPT_OF_BASE, Canary, canary_of
from observability.traces.request_record import AnswerEnd, RequestFacts, RequestRecord
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, Front, gateway_before
from tests.waiting import until

MODELS = {
    "assistant": {
        "pools": {"main": 1},
        "canary": {"pool": "small", "steps": [50, 100], "step_s": 0.2, "requests": 10},
    }
}


def new_conversation(number: int) -> dict[str, Any]:
    """Return a request that begins a conversation."""
    return {"model": "assistant", "messages": [{"role": "user", "content": f"question {number}"}]}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0")


@pytest.fixture
def canary() -> FakeEngine:
    return FakeEngine("r1", model="candidate")


@pytest.fixture
async def front(engine: FakeEngine, canary: FakeEngine, redis_url: str) -> AsyncIterator[Front]:
    async with gateway_before(
        engine, small=canary, redis_url=redis_url, models=MODELS, lookup_budget_ms=1000.0
    ) as front:
        await until(lambda: state_of(front) is not None)
        yield front


def state_of(front: Front) -> Any:
    return front.gateway.parts.canaries.by_route["assistant"].state


async def ask(front: Front, number: int) -> tuple[int, str]:
    """The answer's status, and the model that answered."""
    async with front.post(**new_conversation(number)) as answer:
        await answer.read()
        return answer.status, answer.headers.get("x-antefix-model", "")


def base_takes(front: Front, ttft_s: float, tpot_s: float) -> None:
    """Give the base times, because those of a busy machine say nothing."""
    of_route, now = front.gateway.parts.canaries.by_route["assistant"], time.time()
    of_route.base_ttft_s.extend([(now, ttft_s)] * KEPT_OF_BASE)
    of_route.base_tpot_s.extend([(now, tpot_s)] * KEPT_OF_BASE)


async def test_a_canary_that_is_not_slower_is_promoted(front: Front) -> None:
    number = 0
    async with asyncio.timeout(60):
        while state_of(front).status == "running":
            base_takes(front, ttft_s=60.0, tpot_s=60.0)
            assert (await ask(front, number))[0] == 200
            number += 1
    assert state_of(front).status == "promoted"
    assert {await ask(front, number + n) for n in range(10)} == {(200, "candidate")}


async def test_a_slow_canary_is_aborted_within_twenty_of_its_requests(
    front: Front, canary: FakeEngine
) -> None:
    canary.token_delay_s = 0.04
    number = 0
    async with asyncio.timeout(60):
        while state_of(front).status == "running":
            base_takes(front, ttft_s=60.0, tpot_s=0.004)
            assert (await ask(front, number))[0] == 200
            number += 1
    assert state_of(front).status == "aborted" and "time per output token" in state_of(front).why
    assert len(canary.bodies) <= 20
    # its conversations as well
    assert {await ask(front, n) for n in range(number)} == {(200, MODEL)}


@pytest.mark.parametrize("streams", [True, False])
async def test_a_canary_whose_answers_do_not_stop_is_aborted(
    front: Front, engine: FakeEngine, canary: FakeEngine, streams: bool
) -> None:
    engine.finish_reason = "stop"
    # the base's reasons are known first: a canary without a fault may be promoted meanwhile
    front.gateway.parts.canaries.by_route["assistant"].base_reasons.extend(["stop"] * 60)
    number = 0
    async with asyncio.timeout(60):
        while state_of(front).status == "running":
            base_takes(front, ttft_s=60.0, tpot_s=60.0)
            async with front.post(**new_conversation(number), stream=streams) as answer:
                await answer.read()
                assert answer.status == 200
            number += 1
    assert state_of(front).status == "aborted" and "finish reasons" in state_of(front).why
    metrics = await front.metrics()
    assert metrics["antefix_canary_aborted", "assistant"] == 1
    assert metrics["antefix_canary_share_ratio", "assistant"] == 0


@pytest.fixture
async def other(
    front: Front, engine: FakeEngine, canary: FakeEngine, redis_url: str
) -> AsyncIterator[Front]:
    """Another gateway of the same fleet."""
    async with gateway_before(
        engine,
        small=canary,
        redis_url=redis_url,
        models=MODELS,
        lookup_budget_ms=1000.0,
        starts_engines=False,
    ) as other:
        await until(lambda: state_of(other) is not None)
        yield other


async def reconfigure(front: Front, steps: list[int]) -> None:
    fleet = front.gateway.parts.in_force.fleet.model_dump(mode="json")
    fleet["models"]["assistant"]["canary"]["steps"] = steps
    await front.gateway.reconfigure(settings_of(fleet))


async def test_all_gateways_abort_a_canary_together(front: Front, other: Front) -> None:
    async with front.post_canary("abort") as answer:
        assert (await answer.json())["state"]["status"] == "aborted"
    await until(lambda: state_of(other).status == "aborted")
    assert (await ask(other, 1))[1] == MODEL


async def test_a_gateway_with_older_settings_does_not_begin_an_ended_canary_again(
    front: Front, other: Front
) -> None:
    await reconfigure(front, [25, 100])
    await until(lambda: state_of(front) is not None and state_of(front).version > 1)
    async with front.post_canary("abort") as answer:
        assert answer.status == 200
    ended = state_of(front)
    async with other.post_canary("promote") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (409, "canary_changed")
    async with front.post_canary("abort") as answer:  # it reads what the other has written
        assert (await answer.json())["state"]["version"] == ended.version + 1
    await reconfigure(other, [25, 100])
    await until(lambda: state_of(other) == state_of(front))
    # back to the first settings: another canary
    await reconfigure(other, [50, 100])
    await until(lambda: state_of(other) is not None and state_of(other).status == "running")


async def test_only_operators_end_a_canary(front: Front) -> None:
    headers = {"authorization": f"Bearer {OTHER_KEY}"}
    async with front.post_canary("abort", headers) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (403, "not_an_operator")
    for path, status, code in (
        ("/antefix/canaries/none?action=abort", 404, "unknown_canary"),
        ("/antefix/canaries/assistant?action=burn", 400, "invalid_value"),
    ):
        headers = {"authorization": f"Bearer {KEY}"}
        async with front.http.post(front.url + path, headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)


async def test_new_settings_begin_another_canary(front: Front) -> None:
    async with front.post_canary("abort") as answer:
        assert answer.status == 200
    await reconfigure(front, [25, 100])
    await until(lambda: state_of(front) is not None and state_of(front).status == "running")
    assert state_of(front).version > 2


def rejected(canary: Canary, routed_to: str, now: float) -> None:
    facts = RequestFacts("", "", "/v1/chat/completions", model="assistant", routed_to=routed_to)
    record = RequestRecord(facts, now)
    canary.ended(record, AnswerEnd.rejected(0.0, 429, "queue_full"), now)


def test_a_canary_that_rejects_requests_of_other_pools_is_aborted() -> None:
    canary = canary_of("assistant", ModelRoute.model_validate(MODELS["assistant"]))
    assert canary is not None
    for second in range(20):
        rejected(canary, "small", float(second))
    assert canary.is_worse(20.0)


def test_a_canary_is_not_blamed_while_all_pools_are_full() -> None:
    canary = canary_of("assistant", ModelRoute.model_validate(MODELS["assistant"]))
    assert canary is not None
    for second in range(20):
        rejected(canary, "main", float(second))
        rejected(canary, "small", float(second))
    assert not canary.is_worse(20.0)
    assert canary.requests == 0


@pytest.mark.parametrize("kind", ["pool", "adapter"])
def test_a_late_first_token_counts_against_a_canary_pool_but_not_an_adapter(kind: str) -> None:
    """A rare adapter is not in memory, so its requests wait for a load."""
    settings = {f"{kind}s": {"base": 1}, "canary": {kind: "tried"}}
    canary = canary_of("assistant", ModelRoute.model_validate(settings))
    assert canary is not None
    for number in range(200):
        to, ttft_s = ("base", 0.1) if number < 100 else ("tried", 1.0)
        facts = RequestFacts("", "", "/v1/chat/completions", model="assistant", routed_to=to)
        record = RequestRecord(facts, 0.0, ttft_s=ttft_s)
        canary.ended(record, AnswerEnd(1.0, "ok", 200), number / 10)
    assert canary.is_worse(20.0) == (kind == "pool")
