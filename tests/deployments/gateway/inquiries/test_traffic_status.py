"""`GET /antefix/status` on what was served, and to whom, and on what is left of budgets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deployments.gateway.inquiries.traffic_status import TENANTS_SHOWN, tenants_status
from observability.metrics.budget_metrics import BudgetMetrics
from observability.metrics.families import Families
from observability.metrics.traffic import POOL_MINUTES, ServedTraffic
from observability.traces.request_record import LimitLeft
from router.redis.redis_client import connect
from tests.fakes.engine import FakeEngine
from tests.fakes.front import (
    OTHER_KEY,
    OTHER_TENANT,
    REDIS_NAME,
    TENANT,
    Front,
    gateway_before,
)
from tests.router.budget_redis import write_initial_state
from tests.sentences import assert_sentences
from tests.waiting import until

OTHER = {"authorization": f"Bearer {OTHER_KEY}"}
LIMITED = {"limits": {"requests_per_minute": 10}}
TENANTS = {TENANT: {"operator": True}, OTHER_TENANT: LIMITED}
# The fake engine's answer to "hello".
SERVED = {"ok": 1, "good": 1, "prompt_tokens": 1, "output_tokens": 4}


@asynccontextmanager
async def of_two_tenants(redis_url: str) -> AsyncIterator[Front]:
    """A gateway with an operator and a tenant that has a limit."""
    async with connect(redis_url) as redis:
        await write_initial_state(redis, REDIS_NAME)
    async with gateway_before(FakeEngine(), redis_url=redis_url, tenants=TENANTS) as front:
        await until(lambda: not front.gateway.parts.budgets.by_share)
        yield front


async def status_of(front: Front, query: str = "", **headers: str) -> dict[str, Any]:
    async with front.get(f"/antefix/status{query}", headers=headers) as answer:
        assert answer.status == 200
        status: dict[str, Any] = await answer.json()
    return status


async def serve(front: Front, **headers: str) -> None:
    async with front.post(headers=headers) as answer:
        assert answer.status == 200
        await answer.read()
    await until(lambda: not front.gateway.parts.requests.under_way)
    front.gateway.refresh_metrics({})


async def test_an_operator_sees_all_traffic_and_every_tenants_budgets(redis_url: str) -> None:
    async with of_two_tenants(redis_url) as front:
        await serve(front)
        await serve(front, **OTHER)
        status = await status_of(front)
    assert status["of_tenant"] is None
    traffic = status["pools"]["main"]["traffic"]
    assert traffic["total"] == {name: 2 * count for name, count in SERVED.items()}
    assert traffic["history"] is None
    own, other = sorted(status["tenants"], key=lambda row: row["tenant"] != TENANT)
    assert own == {"tenant": TENANT, "last_hour": SERVED, "limits": []}
    assert (other["tenant"], other["last_hour"]) == (OTHER_TENANT, SERVED)
    assert other["limits"] == [{"model": "", "kind": "requests", "limit": 10, "left": 9}]


async def test_a_tenant_sees_its_own_traffic_and_budgets_only(redis_url: str) -> None:
    async with of_two_tenants(redis_url) as front:
        await serve(front)
        await serve(front)
        await serve(front, **OTHER)
        status = await status_of(front, "?minutes=60", **OTHER)
    traffic = status["pools"]["main"]["traffic"]
    assert traffic["total"] == SERVED
    assert {name: sum(counts) for name, counts in traffic["history"]["counts"].items()} == SERVED
    (only,) = status["tenants"]
    assert only["tenant"] == status["of_tenant"] == OTHER_TENANT
    assert only["last_hour"] == SERVED and len(only["limits"]) == 1
    assert status["tenants_not_shown"] == 0 and status["metrics_port"] is None


async def test_a_history_covers_the_minutes_that_are_asked_for() -> None:
    async with gateway_before(FakeEngine()) as front:
        await serve(front)
        status = await status_of(front, "?minutes=360")
    history = status["pools"]["main"]["traffic"]["history"]
    assert (history["step_s"], history["points"]) == (300, 72)
    assert history["counts"]["ok"] == [*[0] * 71, 1] or history["counts"]["ok"][-2:] == [1, 0]
    assert -1 < status["counted"]["at"] - history["begins"] - 71 * 300 < 301
    assert status["counted"]["since"] <= status["counted"]["at"]


@pytest.mark.parametrize("minutes", ["0", "1441", "-1", "1.5", "", "hour", "9" * 20])
async def test_a_wrong_time_range_is_refused_with_the_right_ones(minutes: str) -> None:
    async with (
        gateway_before(FakeEngine()) as front,
        front.get(f"/antefix/status?minutes={minutes}") as answer,
    ):
        assert answer.status == 400
        error = (await answer.json())["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "minutes")
    assert repr(minutes) in error["message"] and str(POOL_MINUTES) in error["message"]
    assert_sentences(error["message"])


async def test_links_of_the_fleet_file_are_shown_to_every_key() -> None:
    links = {"Grafana": "https://grafana.example.com/"}
    async with gateway_before(FakeEngine(), tenants=TENANTS, links=links) as front:
        assert (await status_of(front, **OTHER))["links"] == links
        assert (await status_of(front))["metrics_port"] == 9464


def test_of_many_tenants_the_busiest_are_shown() -> None:
    traffic, budgets = ServedTraffic(), BudgetMetrics(Families())
    budgets.change({"idle": [LimitLeft("", "requests", 5)]})
    for number in range(TENANTS_SHOWN + 3):
        traffic.count("main", f"t{number}", {"ok": number + 1, "output_tokens": 1000 - number})
    status = tenants_status(traffic, budgets, None, now=0.0)
    shown = [row["tenant"] for row in status["tenants"]]
    assert shown == [f"t{number}" for number in range(TENANTS_SHOWN + 2, 2, -1)]
    assert status["tenants_not_shown"] == 4
