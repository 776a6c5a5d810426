"""An attacker with a separate key, at the public API: was a prompt sent by another tenant?

The engines here cache prompts as vLLM does, by the salt that they get, and report to the index.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from autoscaling.admission.waiting import WaitingRoom
from deployments.wire.headers import CACHED_TOKENS_HEADER
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, OTHER_TENANT, TENANT, Front, gateway_before
from tests.fakes.prompt_cache import PromptCache
from tests.sentences import assert_sentences
from tests.waiting import until

COMPLETIONS = "/v1/completions"
# 5 segments, of which 4 can be reused: the last token is always computed.
PROMPT = [*range(100, 180)]
SEGMENTS, REUSABLE = 5, 64
PREDICTED = "x-antefix-cached-tokens-predicted"
POLICY = "x-antefix-policy"
PATIENT_MS = 1000.0
ATTACKER = {"authorization": f"Bearer {OTHER_KEY}"}
GROUP = {TENANT: {"cache_group": "friends"}, OTHER_TENANT: {"cache_group": "friends"}}


@pytest.fixture(params=[{}])
async def front(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Front]:
    engines = FakeEngine("r0"), FakeEngine("r1")
    for engine in engines:
        engine.renderer = facts()
    async with gateway_before(
        *engines,
        redis_url=redis_url,
        lookup_budget_ms=PATIENT_MS,
        pool={"shadow_policy": "least_loaded"},
        tenants=request.param,
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


async def test_neither_headers_nor_explanations_reveal_another_tenants_prompt(front: Front) -> None:
    await cached_by_the_victim(front)
    told = await ask(front, ATTACKER)
    assert (told[PREDICTED], told[CACHED_TOKENS_HEADER]) == ("0", "0")
    explanation = await explained(front, told)
    assert explanation["cached_tokens"] == {"predicted": 0, "in_index": 0, "confirmed": 0}
    assert explanation["popularity"] == 0
    for candidate in explanation["candidates"]:
        assert candidate["cached_tokens"] == candidate["confirmed_tokens"] == 0


# only operators see the scores
@pytest.mark.parametrize("front", [{OTHER_TENANT: {"operator": True}}], indirect=True, ids=[""])
async def test_placement_is_independent_of_the_prompts_of_other_tenants(front: Front) -> None:
    await cached_by_the_victim(front)
    explanation = await explained(front, await ask(front, ATTACKER))
    one, other = explanation["candidates"]
    assert one["predicted_ttft"] == other["predicted_ttft"]
    assert one["score"] == other["score"]


async def test_a_prompt_that_another_tenant_is_computing_is_not_revealed(front: Front) -> None:
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


async def test_a_tenant_cannot_use_another_tenants_salt(front: Front) -> None:
    replica = await cached_by_the_victim(front)
    (engine,) = [e for e in front.handle.engines if e.replica_id == replica]
    of_victim = json.loads(engine.bodies[-1])["cache_salt"]
    told = await ask(front, ATTACKER, cache_salt=of_victim)
    assert (told[PREDICTED], told[CACHED_TOKENS_HEADER]) == ("0", "0")


async def test_the_same_cache_salt_is_separate_for_each_tenant(front: Front) -> None:
    await ask(front, cache_salt="pepper")
    told = await ask(front, ATTACKER, cache_salt="pepper")
    assert (told[PREDICTED], told[CACHED_TOKENS_HEADER]) == ("0", "0")


@shared
async def test_tenants_of_one_group_share_cached_prompts(front: Front) -> None:
    replica = await cached_by_the_victim(front)
    told = await ask(front, ATTACKER)
    assert told["x-antefix-replica"] == replica
    assert told[PREDICTED] == told[CACHED_TOKENS_HEADER] == str(REUSABLE)
    assert (await explained(front, told))["popularity"] > 0


@pytest.mark.parametrize("front", [{TENANT: {"cache_group": OTHER_TENANT}}], indirect=True)
async def test_a_group_named_like_a_tenant_shares_no_cache_with_it(front: Front) -> None:
    await cached_by_the_victim(front)
    assert (await ask(front, ATTACKER))[CACHED_TOKENS_HEADER] == "0"


@pytest.fixture
def waiting(front: Front) -> None:
    """Requests of both wait in the gateway."""

    class Room(WaitingRoom[Any]):
        by_tenant = property(lambda room: {TENANT: 2, OTHER_TENANT: 1})

    front.pool.scheduler.admission.queue = Room(0)


async def status_of(front: Front) -> dict[str, Any]:
    async with front.get("/antefix/status", headers=ATTACKER) as answer:
        pool: dict[str, Any] = (await answer.json())["pools"]["main"]
    return pool


async def test_status_hides_names_queues_and_addresses_of_others(
    front: Front, waiting: None
) -> None:
    pool = await status_of(front)
    assert pool["admission"]["queued"] == 1
    assert pool["admission"]["queued_by_tenant"] == {OTHER_TENANT: 1}
    assert pool["admission"]["oldest_queued_s"] is pool["admission"]["held"] is None
    for replica in pool["replicas"]:
        assert replica["replica"] in ("r0", "r1") and replica["role"] == "active"
        for name in ("url", "node_ip", "slot", "waiting", "running", "kv_use", "predicted_ttft_s"):
            assert replica[name] is None
    assert "127.0.0.1" not in json.dumps(pool)


@pytest.mark.parametrize("front", [{OTHER_TENANT: {"operator": True}}], indirect=True, ids=[""])
async def test_an_operator_sees_names_queues_and_addresses(front: Front, waiting: None) -> None:
    pool = await status_of(front)
    assert pool["admission"]["queued_by_tenant"] == {TENANT: 2, OTHER_TENANT: 1}
    assert [replica["node_ip"] for replica in pool["replicas"]] == ["127.0.0.1"] * 2


async def test_the_only_tenant_sees_all_and_chooses_policies(front: Front) -> None:
    front.accepts({KEY: OTHER_TENANT, OTHER_KEY: OTHER_TENANT})
    assert (await status_of(front))["replicas"][0]["node_ip"] == "127.0.0.1"
    told = await ask(front, {**ATTACKER, POLICY: "random"})
    assert told[POLICY] == "random"
    assert "score" in (await explained(front, told))["candidates"][0]


async def test_explanations_contain_no_loads_and_no_addresses(front: Front) -> None:
    told = await ask(front, ATTACKER)
    explanation = await explained(front, told)
    names = {"replica_id", "cached_tokens", "confirmed_tokens", "synced"}
    assert [candidate.keys() for candidate in explanation["candidates"]] == [names] * 2
    assert explanation["shadow"] is explanation["alternative"] is None
    async with front.get("/antefix/decisions") as answer:
        assert (await answer.json())["decisions"] == [explanation]


async def test_a_tenant_that_may_not_choose_a_policy_gets_an_error(front: Front) -> None:
    async with front.post(headers={**ATTACKER, POLICY: "session"}) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["param"]) == (403, "policy_not_allowed", POLICY)
    assert_sentences(error["message"])


@pytest.mark.parametrize(
    "front", [{OTHER_TENANT: {"policy_header": True}}], indirect=True, ids=[""]
)
async def test_a_tenant_that_may_choose_a_policy_gets_it(front: Front) -> None:
    assert (await ask(front, {**ATTACKER, POLICY: "random"}))[POLICY] == "random"


RIGHTS = {"policy_header": True}


@pytest.mark.parametrize("front", [{TENANT: RIGHTS, OTHER_TENANT: RIGHTS}], indirect=True, ids=[""])
async def test_sessions_of_the_same_name_are_placed_per_tenant(front: Front) -> None:
    async def served(session: str, as_: Mapping[str, str]) -> str:
        headers = {**as_, POLICY: "session", "x-session-id": session}
        return (await ask(front, headers))["x-antefix-replica"]

    sessions = [f"session {number}" for number in range(20)]
    of_victim = [await served(session, {}) for session in sessions]
    assert [await served(session, {}) for session in sessions] == of_victim
    assert [await served(session, ATTACKER) for session in sessions] != of_victim
