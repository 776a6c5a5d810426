"""An attacker with a key of its own, at the public API: was a prompt sent by another tenant?

The engines here cache prompts as vLLM does, by the salt that they get, and tell the index.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from deployments.wire.headers import CACHED_TOKENS_HEADER
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import OTHER_KEY, OTHER_TENANT, TENANT, Front, gateway_before
from tests.fakes.publishing import BLOCK_TOKENS
from tests.waiting import until

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
# 5 segments, of which 4 can be reused: the last token is always computed.
PROMPT = [*range(100, 180)]
SEGMENTS, REUSABLE = 5, 64
PREDICTED = "x-antefix-cached-tokens-predicted"
PATIENT_MS = 1000.0
ATTACKER = {"authorization": f"Bearer {OTHER_KEY}"}
GROUP = {TENANT: {"cache_group": "friends"}, OTHER_TENANT: {"cache_group": "friends"}}


class PromptCache:
    """A prefix cache as vLLM's, which tells the index what it stores."""

    def __init__(self, front: Front, replica_id: str) -> None:
        self._published = front.published[replica_id]
        self._held: list[tuple[str | None, list[int]]] = []

    def __call__(self, fields: dict[str, Any]) -> tuple[int, int]:
        salt, prompt = fields.get("cache_salt"), fields["prompt"]
        found = [common(prompt, of) for of_salt, of in self._held if of_salt == salt]
        if not found:
            self._held.append((salt, prompt))
            self._published.stored(prompt, salt)
        return len(prompt), min(max(found, default=0), len(prompt) - 1) // BLOCK_TOKENS * 16


def common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


@pytest.fixture(params=[{}])
async def front(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Front]:
    engines = FakeEngine("r0"), FakeEngine("r1")
    for engine in engines:
        engine.renderer = facts()
    async with gateway_before(
        *engines, redis_url=redis_url, lookup_budget_ms=PATIENT_MS, tenants=request.param
    ) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        for engine in engines:
            engine.prompt_cache = PromptCache(front, engine.replica_id)
        yield front


shared = pytest.mark.parametrize("front", [GROUP], indirect=True, ids=["one group"])


async def ask(front: Front, as_: Mapping[str, str] | None = None, **body: Any) -> Mapping[str, str]:
    fields = {"prompt": PROMPT, "max_tokens": 1, **body}
    async with front.post(COMPLETIONS, headers=dict(as_ or {}), **fields) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        told: Mapping[str, str] = answer.headers
    return told


async def cached_by_the_victim(front: Front, times: int = 3) -> str:
    """The victim's prompt is popular, cached and in the index; where."""
    replica = (await ask(front))["x-antefix-replica"]
    await front.published[replica].holds(SEGMENTS)
    for _ in range(times - 1):
        told = await ask(front)
        assert (told["x-antefix-replica"], told[PREDICTED]) == (replica, str(REUSABLE))
        assert told[CACHED_TOKENS_HEADER] == str(REUSABLE)
    return replica


async def explained(front: Front, told: Mapping[str, str]) -> dict[str, Any]:
    front.headers = ATTACKER
    return await front.explanation_of(told)


async def test_neither_headers_nor_explanations_tell_of_anothers_prompt(front: Front) -> None:
    await cached_by_the_victim(front)
    told = await ask(front, ATTACKER)
    assert (told[PREDICTED], told[CACHED_TOKENS_HEADER]) == ("0", "0")
    explanation = await explained(front, told)
    assert explanation["cached_tokens"] == {"predicted": 0, "in_index": 0, "confirmed": 0}
    assert explanation["popularity"] == 0
    for candidate in explanation["candidates"]:
        assert candidate["cached_tokens"] == candidate["confirmed_tokens"] == 0


async def test_placement_does_not_follow_anothers_prompt(front: Front) -> None:
    await cached_by_the_victim(front)
    explanation = await explained(front, await ask(front, ATTACKER))
    one, other = explanation["candidates"]
    assert one["predicted_ttft"] == other["predicted_ttft"]
    assert one["score"] == other["score"]


async def test_a_prompt_that_another_is_about_to_compute_is_not_told_of(front: Front) -> None:
    engines = front.handle.engines
    for engine in engines:
        engine.pauses_after = 0
    victim = asyncio.ensure_future(ask(front))
    await until(lambda: sum(engine.running for engine in engines) == 1)
    for engine in engines:
        engine.go_on.set()
    told = await ask(front, ATTACKER)
    assert (told[PREDICTED], told[CACHED_TOKENS_HEADER]) == ("0", "0")
    await victim


async def test_nobody_can_ask_with_anothers_salt(front: Front) -> None:
    replica = await cached_by_the_victim(front)
    (engine,) = [e for e in front.handle.engines if e.replica_id == replica]
    of_victim = json.loads(engine.bodies[-1])["cache_salt"]
    told = await ask(front, ATTACKER, cache_salt=of_victim)
    assert (told[PREDICTED], told[CACHED_TOKENS_HEADER]) == ("0", "0")


async def test_one_salt_of_the_clients_is_two_salts_of_two_tenants(front: Front) -> None:
    await ask(front, cache_salt="pepper")
    told = await ask(front, ATTACKER, cache_salt="pepper")
    assert (told[PREDICTED], told[CACHED_TOKENS_HEADER]) == ("0", "0")


@shared
async def test_tenants_of_one_group_find_each_others_prompts(front: Front) -> None:
    replica = await cached_by_the_victim(front)
    told = await ask(front, ATTACKER)
    assert told["x-antefix-replica"] == replica
    assert told[PREDICTED] == told[CACHED_TOKENS_HEADER] == str(REUSABLE)
    assert (await explained(front, told))["popularity"] > 0


@pytest.mark.parametrize("front", [{TENANT: {"cache_group": OTHER_TENANT}}], indirect=True)
async def test_a_group_that_is_called_as_a_tenant_is_not_that_tenant(front: Front) -> None:
    await cached_by_the_victim(front)
    assert (await ask(front, ATTACKER))[CACHED_TOKENS_HEADER] == "0"
