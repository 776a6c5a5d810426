"""A reader of the page in a real browser, and requests to look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Page, Route

from tests.fakes.engine import FakeEngine
from tests.fakes.front import KEY, TENANT, Front

DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
# The narrowest window that WCAG 2.2 asks for (1.4.10 Reflow).
NARROW = {"width": 320, "height": 800}
PATIENCE_MS = 20000
SLO = {"slo": {"interactive": {"ttft_s": 30.0}, "batch": {"ttft_s": 60.0}}}


class Reader:
    """A reader of the page. `faults`: what the browser complained of; `asked`: URLs."""

    def __init__(self, page: Page, front: Front) -> None:
        self.page = page
        self.front = front
        self.faults: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    async def opens(self, fragment: str = f"#key={KEY}") -> None:
        await self.page.goto(f"{self.front.url}/antefix/{fragment}")

    async def is_told(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """From now on the page gets what `change` makes of the gateway's status."""

        async def answer(route: Route) -> None:
            response = await route.fetch()
            await route.fulfill(response=response, json=change(await response.json()))

        await self.page.route("**/antefix/status?*", answer)

    def decisions(self) -> Any:
        return self.page.locator("#list > li")

    def decision(self, request_id: str) -> Any:
        return self.decisions().filter(has_text=request_id)


@asynccontextmanager
async def reading(
    browser: Browser, front: Front, viewport: Any = DESKTOP, **options: Any
) -> AsyncIterator[Reader]:
    context = await browser.new_context(viewport=viewport, **options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield Reader(await context.new_page(), front)
    finally:
        await context.close()


async def served(front: Front, request_id: str, /, **changed: Any) -> dict[str, Any]:
    """Serve a request, and return its explanation. `changed` parts are kept as another decision."""
    async with front.post(headers={"x-request-id": request_id}) as answer:
        assert answer.status == 200
    told = await front.explanation_of(answer.headers)
    if changed:
        told |= changed
        front.gateway.parts.explanations.keep(TENANT, told["request_id"], told)
    return told


def rejected(told: dict[str, Any], request_id: str) -> dict[str, Any]:
    """The same as an explanation of a request that was not admitted."""
    parts = ("replica", "cached_tokens", "ttft_s", "reuse_loss_tokens", "shadow", "last_replica")
    ended = {"outcome": "rejected", "status": 429, "error": "over_capacity", "stage": "placement"}
    admission = {"priority": "interactive", "verdict": "rejected", "reason": "the pool is full"}
    kept = {name: part for name, part in told.items() if name not in parts}
    return {**kept, **ended, "request_id": request_id, "admission": admission}


async def failed(front: Front, engine: FakeEngine, request_id: str) -> None:
    """A request that runs out of time before its first token."""
    engine.pauses_after = 0
    headers = {"x-request-id": request_id, "x-antefix-timeout": "0.2"}
    async with front.post(headers=headers) as answer:
        assert answer.status == 504
    await front.explanation_of(answer.headers)
    engine.pauses_after = None
