"""What the page shows of traffic, pools, tenants and the autoscaler."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from router.redis.redis_client import connect
from tests.deployments.gateway.page.reading import SLO, Reader, reading, served
from tests.fakes.engine import FakeEngine
from tests.fakes.front import (
    KEY,
    OTHER_KEY,
    OTHER_TENANT,
    REDIS_NAME,
    TENANT,
    Front,
    gateway_before,
)
from tests.router.budget_redis import write_initial_state
from tests.router.redis_process import RedisProcess
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITED = {TENANT: {"operator": True}, OTHER_TENANT: {"limits": {"requests_per_minute": 10}}}


def with_autoscaler(decided: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The status of a fleet whose pool has an autoscaler that decided this."""

    def change(fleet: dict[str, Any]) -> dict[str, Any]:
        fleet["pools"]["main"]["autoscaler"] = decided
        return fleet

    return change


async def test_requests_and_tokens_are_counted_for_each_pool(reader: Reader, front: Front) -> None:
    for request_id in ("first", "second"):
        await served(front, request_id)
    await reader.opens()
    table = reader.page.get_by_role("table", name="Traffic of each pool")
    row = table.get_by_role("row").filter(has_text="main")
    cells = ["2", "2", "0", "0", "0", "100%", "2\u00a0tok", "0%", "8\u00a0tok"]
    await expect(row.get_by_role("cell")).to_have_text(cells)
    await expect(reader.page.locator("#traffic-of")).to_contain_text("counted by 1 of 1 gateways")
    chart = reader.page.get_by_role("img", name=re.compile("Requests per second from"))
    await expect(chart.locator("rect.answered").first).to_be_visible()


async def test_rates_are_computed_between_two_status_answers(reader: Reader, front: Front) -> None:
    await reader.opens()
    rates = reader.page.locator("#rates")
    await expect(rates).to_contain_text("Requests/s0ended")
    await served(front, "first")
    await expect(rates).to_contain_text(re.compile(r"Requests/s0\.\d+ended"))
    await expect(rates).to_contain_text(re.compile(r"Output tokens/s(0\.\d|[1-9])"))


async def is_counted(front: Front) -> bool:
    """Whether the gateway's history has a request: it counts them once per second."""
    async with front.get("/antefix/status?minutes=60") as answer:
        pools = (await answer.json())["pools"].values()
    return any(pool["traffic"]["total"] for pool in pools)


async def test_rates_are_shown_from_the_first_status_answer(reader: Reader, front: Front) -> None:
    asked: list[str] = []

    async def only_the_first(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 1:
            await route.abort()
            return
        # shortly before the answer, however slow the browser is
        await served(front, "first")
        while True:
            if await is_counted(front):
                break
            await asyncio.sleep(0.05)
        await route.continue_()

    await reader.page.route("**/antefix/status?*", only_the_first)
    await reader.opens()
    rates = reader.page.locator("#rates")
    await expect(rates).to_contain_text(re.compile(r"Requests/s(0\.\d|[1-9])"))
    await expect(rates).to_contain_text(re.compile(r"Output tokens/s(0\.\d|[1-9])"))
    await expect(rates).to_contain_text("Errors/s00 rejected/s")


async def test_the_legend_of_requests_names_the_columns_of_the_table(
    reader: Reader, front: Front
) -> None:
    await served(front, "first")
    await reader.opens()
    legend = await reader.page.locator("#history figcaption").first.inner_text()
    table = reader.page.get_by_role("table", name="Traffic of each pool")
    columns = await table.get_by_role("columnheader").all_inner_texts()
    for name in ("Answered", "Not counted", "Rejected", "Failed"):
        assert name in columns
        assert name.lower() in legend


async def test_the_user_can_choose_the_time_range(reader: Reader, front: Front) -> None:
    await served(front, "first")
    await reader.opens()
    ranges = reader.page.get_by_role("group", name="Time range")
    async with reader.page.expect_response("**/antefix/status?minutes=1440") as response:
        await ranges.get_by_text("24 hours").click()
    history = (await (await response.value).json())["pools"]["main"]["traffic"]["history"]
    assert (history["step_s"], history["points"]) == (900, 96)
    chart = reader.page.get_by_role("img", name=re.compile("Tokens per second"))
    await expect(chart.locator("rect.step")).to_have_count(1)


async def test_charts_have_axes(reader: Reader, front: Front) -> None:
    await served(front, "first")
    await reader.opens()
    for place in ("#pools", "#history"):
        plot = reader.page.locator(f"{place} .plot").first
        await expect(plot.locator(".y-axis span").first).to_have_text(re.compile(r"\d"))
        await expect(plot.locator(".x-axis span").last).to_have_text(re.compile(r"\d\d:\d\d"))
        assert await plot.locator(".y-axis span").count() >= 2


async def test_a_marker_in_the_chart_opens_its_decision(reader: Reader, front: Front) -> None:
    await served(front, "first")
    await reader.opens()
    await reader.page.locator("#pools .chart path").first.click()
    await expect(reader.decision("first").locator(".explanation")).to_be_visible()


async def test_the_page_shows_autoscaler_decisions_in_words(reader: Reader) -> None:
    decided = {"demand": 2, "target": 3, "because": "backlog", "arrivals": 4.25, "forecast": 6.5}
    await reader.is_told(with_autoscaler(decided))
    await reader.opens()
    said = "wants 3 replicas, 2 of them to take traffic, for the prompts that wait. "
    said += "4.25 requests/s arrive; it expects 6.50 once a new replica could serve."
    await expect(reader.page.locator(".autoscaler")).to_contain_text(said)


async def test_a_pool_without_a_replica_is_red_and_named_in_the_alert(
    reader: Reader, ray: dict[str, dict[str, int]]
) -> None:
    ray["main"] = {"STARTING": 1}
    await reader.opens()
    card = reader.page.locator(".pool")
    await expect(card).to_have_class(re.compile(r"\bdown\b"))
    await expect(card.locator(".about .chip.bad")).to_have_text("no replica")
    notice = reader.page.get_by_role("status").filter(has_text="No replica runs in the pool main.")
    await expect(notice).to_be_visible()
    colours = "card => [getComputedStyle(card).borderLeftColor, "
    colours += "getComputedStyle(card.querySelector('.chip.bad')).color]"
    border, chip = await card.evaluate(colours)
    assert border == chip
    ray["main"] = {"RUNNING": 1}
    await expect(card).not_to_have_class(re.compile(r"\bdown\b"))


async def test_a_pool_that_is_scaled_to_zero_is_not_red(
    reader: Reader, ray: dict[str, dict[str, int]]
) -> None:
    ray["main"] = {}
    decided = {"demand": 0, "target": 0, "because": "hold", "arrivals": 0.0, "forecast": None}
    await reader.is_told(with_autoscaler(decided))
    await reader.opens()
    await expect(reader.page.locator(".autoscaler")).to_contain_text("wants 0 replicas")
    await expect(reader.page.locator(".pool.down")).to_have_count(0)


async def test_tenants_see_their_budgets_and_operators_all(
    browser: Browser, redis_url: str
) -> None:
    async with connect(redis_url) as redis:
        await write_initial_state(redis, REDIS_NAME)
    async with gateway_before(FakeEngine(), redis_url=redis_url, tenants=LIMITED) as front:
        await until(lambda: not front.gateway.parts.budgets.by_share)
        for key in (KEY, OTHER_KEY):
            async with front.post(headers={"authorization": f"Bearer {key}"}) as answer:
                assert answer.status == 200
        async with reading(browser, front) as reader:
            await reader.opens()
            rows = reader.page.get_by_role("table", name="Use and budgets").locator("tbody tr")
            await expect(rows).to_have_count(2)
            limited = rows.filter(has_text=OTHER_TENANT)
            await expect(limited).to_contain_text("9 left of 10 requests/min")
            await reader.page.get_by_role("button", name="Sign out").click()
            await reader.opens(f"#key={OTHER_KEY}")
            await expect(reader.page.locator("#tenants-title")).to_contain_text("Your tenant")
            await expect(rows).to_have_count(1)
            await expect(rows).to_contain_text(OTHER_TENANT)
            await expect(reader.page.locator("#traffic-of")).to_contain_text("of the tenant other")
            assert reader.faults == []


async def test_links_lead_where_the_fleet_file_says_and_to_the_metrics(
    browser: Browser, server: RedisProcess
) -> None:
    links = {"Grafana": "https://grafana.example.com/d/fleet"}
    async with (
        gateway_before(redis_url=server.url, pool=SLO, links=links) as front,
        reading(browser, front) as reader,
    ):
        await reader.opens()
        footer = reader.page.locator("footer")
        grafana = footer.get_by_role("link", name="Grafana")
        await expect(grafana).to_have_attribute("href", links["Grafana"])
        metrics = footer.get_by_role("link", name="Metrics")
        await expect(metrics).to_have_attribute("href", "http://127.0.0.1:9464/metrics")
        assert KEY not in await footer.inner_html()


def as_an_older_release(fleet: dict[str, Any]) -> dict[str, Any]:
    new = ("of_tenant", "links", "metrics_port", "counted", "tenants", "tenants_not_shown")
    del fleet["pools"]["main"]["traffic"]
    return {name: part for name, part in fleet.items() if name not in new}


async def test_figures_that_an_older_gateway_does_not_report_are_omitted(
    reader: Reader,
) -> None:
    await reader.is_told(as_an_older_release)
    await reader.opens()
    await expect(reader.page.locator(".pool")).to_be_visible()
    for section in ("#traffic", "#tenants"):
        await expect(reader.page.locator(section)).to_be_hidden()
    assert reader.faults == []
