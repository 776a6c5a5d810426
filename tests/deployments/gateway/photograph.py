"""Pictures of a fleet's page for docs/page.md, taken with Chromium.

`python -m tests.deployments.gateway.photograph http://127.0.0.1:8000 docs/images`, with the API key
in OPENAI_API_KEY (`antefix env` sets it), writes page-{light,dark}-{desktop,phone}.png: the
desktop's is the whole page with the newest decision open, the phone's what is seen first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Page, sync_playwright

from tests import programs

SIZES = {"desktop": (1440, 900), "phone": (390, 1900)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def photograph(base_url: str, key: str, folder: Path) -> None:
    chromium = programs.find("chromium")
    if not chromium:
        sys.exit(f"Chromium is not installed ({programs.remedy('chromium')}).")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in SCHEMES:
            for name, (width, height) in SIZES.items():
                viewport: Any = {"width": width, "height": height}
                page = browser.new_page(
                    viewport=viewport, color_scheme=scheme, reduced_motion="reduce"
                )
                _arrange(page, f"{base_url}/antefix/#key={key}")
                page.screenshot(
                    path=folder / f"page-{scheme}-{name}.png", full_page=name == "desktop"
                )
                page.close()
        browser.close()


def _arrange(page: Page, address: str) -> None:
    """The first decision open; no more of the list than shows what it is."""
    page.goto(address)
    page.locator("#list > li").first.wait_for()
    page.get_by_role("button", name="Pause").click()
    page.locator("#list > li summary").first.press("Enter")
    page.locator(".explanation").first.wait_for()
    page.evaluate(
        "for (const item of [...document.querySelectorAll('#list > li')].slice(9)) item.remove();"
        "document.activeElement.blur(); scrollTo(0, 0)"
    )


if __name__ == "__main__":
    photograph(sys.argv[1].rstrip("/"), os.environ["OPENAI_API_KEY"], Path(sys.argv[2]))
