"""Pools of other accelerators compete for a model's requests: the cheapest that meets the SLO."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from deployments.fleet.applications import settings_of
from deployments.gateway.checks.request_checks import fits
from deployments.gateway.intake.keys_file import KeyRights, stored
from deployments.gateway.intake.request import PoolRequest
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import TENANT, Front, gateway_before
from tests.router.loads import changed
from tests.waiting import cancelled, until

SLO = {"interactive": {"ttft_s": 2.0}, "batch": {"ttft_s": 60.0}}
PRICES = {"main": {"prompt": 1.0, "output": 2.0}, "small": {"prompt": 3.0, "output": 6.0}}
ROUTES: list[dict[str, Any]] = []  # of explanations
MODELS = {"assistant": {"pools": {"main": 1, "small": 1}, "select": "price"}}


@pytest.fixture
def slow() -> FakeEngine:
    return FakeEngine("r0", limit=100)


@pytest.fixture
def fast() -> FakeEngine:
    return FakeEngine("r1", model="fast", limit=100)


@pytest.fixture
async def front(slow: FakeEngine, fast: FakeEngine) -> AsyncIterator[Front]:
    async with gateway_before(slow, small=fast) as front:
        explanations = front.gateway.parts.explanations

        def keep(tenant: str, request_id: str, explanation: Mapping[str, Any]) -> None:
            ROUTES.append(explanation["route"])

        explanations.keep = keep  # type: ignore[method-assign]  # there is no Redis
        await sets(front, MODELS)
        yield front


async def sets(front: Front, models: Mapping[str, Any], **pool: Any) -> None:
    fleet = front.gateway.parts.in_force.fleet.model_dump(mode="json")
    fleet["models"] = models
    for name, price in PRICES.items():
        fleet["pools"][name] |= {"slo": SLO, "price": price, **pool}
    await front.gateway.reconfigure(settings_of(fleet))
    assert not front.gateway.parts.in_force.refused


async def model_and_route(front: Front, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The model that answered, and why its pool was chosen."""
    async with front.post(**{"model": "assistant", **fields}) as answer:
        assert answer.status == 200, await answer.text()
        return str(answer.headers["x-antefix-model"]), await route_of()


async def route_of() -> dict[str, Any]:
    """Return the route of the request that ended last."""
    await until(lambda: ROUTES)
    return ROUTES.pop()


async def test_a_request_goes_to_the_cheapest_that_meets_its_slo(
    front: Front, slow: FakeEngine, fast: FakeEngine
) -> None:
    model, route = await model_and_route(front)
    assert (model, route["by"]) == (MODEL, "price")
    assert [offer["pool"] for offer in route["offers"]] == ["main", "small"]
    assert all(offer["holds_slo"] for offer in route["offers"])
    cheap, dear = (offer["price"] for offer in route["offers"])
    assert dear == pytest.approx(3 * cheap)


async def test_a_request_goes_to_the_next_pool_when_the_cheapest_misses_the_slo(
    front: Front, slow: FakeEngine, fast: FakeEngine
) -> None:
    front.sees_queues({slow: 1_000_000})
    model, route = await model_and_route(front)
    assert (model, route["by"]) == ("fast", "price")
    assert [offer["holds_slo"] for offer in route["offers"]] == [False, True]
    assert json.loads(fast.bodies[-1])["model"] == "fast"


async def test_an_idle_pool_that_is_too_slow_does_not_meet_the_slo(
    front: Front, slow: FakeEngine, fast: FakeEngine
) -> None:
    front.sees(slow)
    front.pools["main"].scheduler.board.update([changed(slow.load(), prefill_rate=1.0)])
    model, route = await model_and_route(front)
    assert (model, route["by"]) == ("fast", "price")
    assert [offer["holds_slo"] for offer in route["offers"]] == [False, True]


async def test_with_no_pool_known_all_of_them_serve(front: Front) -> None:
    front.sees()
    front.sees(pool="small")
    assert {(await model_and_route(front))[0] for _ in range(30)} == {MODEL, "fast"}


async def test_the_fastest_pool_is_chosen_when_no_pool_meets_the_slo(
    front: Front, slow: FakeEngine, fast: FakeEngine
) -> None:
    front.sees_queues({slow: 1_000_000})
    front.sees_queues({fast: 500_000}, pool="small")
    async with front.post(model="assistant") as answer:
        assert answer.status == 429  # admission is by the chosen pool
    route = await route_of()
    assert route["by"] == "soonest"
    assert [offer["holds_slo"] for offer in route["offers"]] == [False, False]


async def test_without_a_replica_the_other_pool_serves(front: Front, slow: FakeEngine) -> None:
    front.sees()
    assert (await model_and_route(front))[0] == "fast"
    front.sees(slow)
    front.sees(pool="small")
    assert (await model_and_route(front))[0] == MODEL


async def test_a_pool_that_cannot_answer_does_not_compete(front: Front) -> None:
    await sets(front, MODELS)
    fleet = front.gateway.parts.in_force.fleet.model_dump(mode="json")
    fleet["pools"]["main"]["allowed_xargs"] = ["known"]
    await front.gateway.reconfigure(settings_of(fleet))
    front.sees_queues({FakeEngine("r0"): 1_000_000})
    async with front.post(model="assistant", vllm_xargs={"known": 1}) as answer:
        assert answer.status == 429  # the fast one does not take it


async def test_a_pool_of_weight_0_does_not_compete(front: Front, slow: FakeEngine) -> None:
    await sets(front, {"assistant": {"pools": {"main": 0, "small": 1}, "select": "price"}})
    model, route = await model_and_route(front)
    assert (model, route["by"], route["offers"]) == ("fast", "only", [])


async def test_only_batch_requests_wait_for_the_cheap_pool(front: Front, slow: FakeEngine) -> None:
    front.sees_queues({slow: int(20 * slow.load().pace.prefill_rate)})
    assert (await model_and_route(front))[0] == "fast"
    waiting = asyncio.create_task(model_and_route(front, service_tier="flex"))
    await until(lambda: front.pools["main"].is_waited_for)
    await cancelled(waiting)


@pytest.mark.parametrize(
    ("tokens", "is_known", "has_room"),
    [(999, True, True), (1000, True, False), (1000, False, True)],
)
async def test_a_prompt_that_fills_the_context_of_a_pool_does_not_go_there(
    front: Front, tokens: int, is_known: bool, has_room: bool
) -> None:
    prompt = SimpleNamespace(known=is_known)
    request = cast(PoolRequest, SimpleNamespace(tokens=tokens, prompt=prompt))
    assert fits(front.pools["small"], request) == has_room  # of 1000 tokens


async def test_a_key_overflows_from_no_pool_to_a_model_that_it_may_not_use(
    front: Front, slow: FakeEngine, tmp_path: Path
) -> None:
    fleet = front.gateway.parts.in_force.fleet.model_dump(mode="json")
    fleet["pools"]["small"]["overflow"] = {"to": "main", "max_share": 1.0}
    fleet["pools"]["main"]["price"] = {"prompt": 9.0, "output": 9.0}
    await front.gateway.reconfigure(settings_of(fleet))
    assert not front.gateway.parts.in_force.refused
    front.pools["main"].scheduler.board.update([replace(slow.load(), max_model_len=1000)])
    keys = {"a" * 32: None, "b" * 32: frozenset({"assistant"})}
    lines = (stored(TENANT, key, KeyRights(models)).line() + "\n" for key, models in keys.items())
    (tmp_path / "keys").write_text("".join(lines))
    front.gateway.parts.keys.take(tmp_path / "keys")
    for key, statuses in zip(keys, ({200}, {400, 403}), strict=True):
        slow.bodies.clear()
        headers = {"authorization": f"Bearer {key}", "x-antefix-overflow": "only"}
        async with front.post(model="assistant", headers=headers) as answer:
            assert answer.status in statuses, await answer.text()
        assert bool(slow.bodies) == (statuses == {200})
