"""The page without a mouse, in a narrow window and in the dark: axe-core finds nothing wrong."""

from typing import Any, Literal

import pytest
from playwright.async_api import Browser, expect

from tests.axe import violations
from tests.deployments.gateway.page.reading import (
    DESKTOP,
    NARROW,
    Reader,
    reading,
    rejected,
    served,
)
from tests.fakes.front import KEY, TENANT, Front

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN_ALL = "for (const one of document.querySelectorAll('details')) one.open = true"
# Where the page is wider than the window: what sticks out, and by how much.
STICKS_OUT = """() => [...document.querySelectorAll('body *')]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`).slice(0, 5)"""


async def arrange(front: Front) -> None:
    """Decisions of every kind."""
    told = await served(front, "first")
    late = {"predicted": 0.2, "observed": 31.0}
    budget: dict[str, Any] = {
        "tokens": 600,
        "limits": [{"model": "", "kind": "requests", "limit": 60, "left": 59}],
        "exhausted": None,
        "by_share": False,
    }
    shadow = {"policy": "random", "replica_id": "r9", "cached_tokens": 3, "predicted_ttft": 0.1}
    more = {"shadow": shadow | {"regret": 2.5}, "budget": budget, "ttft_s": late}
    await served(front, "second", request_id="late", **more)
    front.gateway.parts.explanations.keep(TENANT, "turned-away", rejected(told, "turned-away"))


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("viewport", [NARROW, DESKTOP], ids=["narrow", "desktop"])
async def test_axe_finds_no_violation(
    browser: Browser, front: Front, viewport: Any, colours: Literal["light", "dark"]
) -> None:
    await arrange(front)
    options = {"color_scheme": colours, "reduced_motion": "reduce", "bypass_csp": True}
    async with reading(browser, front, viewport, **options) as reader:
        await reader.opens("")
        await expect(reader.page.locator("#sign-in")).to_be_visible()
        assert await violations(reader.page) == []
        await reader.opens()
        await expect(reader.decisions()).to_have_count(4)
        await reader.page.get_by_role("button", name="Pause").click()
        assert await violations(reader.page) == []
        await reader.page.evaluate(OPEN_ALL)
        await expect(reader.decision("turned-away").locator(".words")).to_be_visible()
        assert await violations(reader.page) == []


async def test_axe_finds_no_violation_where_a_pool_has_no_replica(
    browser: Browser, front: Front, ray: dict[str, dict[str, int]]
) -> None:
    ray["main"] = {"STARTING": 1}
    async with reading(browser, front, bypass_csp=True) as reader:
        await reader.opens()
        await expect(reader.page.locator(".pool.down")).to_be_visible()
        assert await violations(reader.page) == []


async def test_with_all_sections_open_nothing_exceeds_the_narrowest_window(
    browser: Browser, front: Front
) -> None:
    await arrange(front)
    async with reading(browser, front, NARROW) as reader:
        await reader.opens()
        await expect(reader.decisions()).to_have_count(4)
        await reader.page.evaluate(OPEN_ALL)
        await expect(reader.decision("turned-away").locator(".words")).to_be_visible()
        is_wide = await reader.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not is_wide, await reader.page.evaluate(STICKS_OUT)


async def test_no_explanation_needs_a_mouse(reader: Reader, front: Front) -> None:
    await arrange(front)
    await reader.opens()
    await expect(reader.decisions()).to_have_count(4)
    await reader.page.evaluate(OPEN_ALL)
    await expect(reader.decision("turned-away").locator(".words")).to_be_visible()
    assert await reader.page.locator("body [title], body svg title").count() == 0


@pytest.mark.parametrize(
    ("section", "term"),
    [
        ("#traffic", "Goodput"),
        (".pool", "Hit rate"),
        (".pool", "TTFT objective"),
        (".pool", "KV use"),
        ("#tenants", "Budgets"),
        ("#decisions", "Verdict"),
    ],
)
async def test_a_term_is_explained_by_a_line_that_opens_by_keyboard(
    reader: Reader, section: str, term: str
) -> None:
    await reader.opens(f"#key={KEY}")
    lines = reader.page.locator(f"{section} details.help")
    line = lines.filter(has=reader.page.locator("dt", has_text=term))
    meaning = line.locator(".terms > div").filter(has=reader.page.locator("dt", has_text=term))
    await expect(meaning.first).to_be_hidden()
    await line.locator("summary").press("Enter")
    await expect(meaning.first).to_be_visible()
    assert len((await meaning.first.locator("dd").inner_text()).split()) >= 3
