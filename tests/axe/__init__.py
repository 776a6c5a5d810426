"""Accessibility of a page, as axe-core finds it (https://github.com/dequelabs/axe-core)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from playwright.async_api import Page

from tests import npm

HERE = Path(__file__).parent


async def violations(page: Page) -> list[str]:
    """One for each rule and element that breaks it. The page's context must bypass its CSP.

    Skips the test without node.
    """
    folder = await asyncio.to_thread(npm.installed, HERE)
    source = (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    await page.evaluate(source)
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']} at {node['target']}: {node['failureSummary']}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]
