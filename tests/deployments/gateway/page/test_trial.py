"""The page's box to try a prompt."""

import json
import re
from typing import Any

import pytest
from playwright.async_api import Locator, expect
from starlette.responses import JSONResponse

from tests.deployments.gateway.page.reading import Reader
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front
from tests.fakes.serve_handle import FakeHandle

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "Why is the sky blue?"


def engines(front: Front) -> list[FakeEngine]:
    handle: FakeHandle = front.handle
    return list(handle.engines)


async def opened(reader: Reader) -> Locator:
    await reader.opens()
    box = reader.page.locator("#trial")
    await box.get_by_role("heading", name="Try a prompt").click()
    await expect(box.get_by_label("Model").locator("option")).to_have_text([MODEL])
    return box


async def send(box: Locator, tokens: int = 3) -> None:
    await box.get_by_label("Prompt").fill(PROMPT)
    await box.get_by_label("Most tokens of the answer").fill(str(tokens))
    await box.get_by_role("button", name="Send").click()


async def test_the_web_ui_shows_an_answer_and_then_the_explanation_of_its_placement(
    reader: Reader, front: Front
) -> None:
    box = await opened(reader)
    await send(box)
    await expect(box.locator("#trial-answer")).to_have_text("t1 t2 t3")
    await expect(box.get_by_role("status")).to_contain_text("3\u00a0tok for a prompt of 5\u00a0tok")
    explanation = box.locator("#trial-explanation")
    await expect(explanation.get_by_role("heading")).to_have_text(
        re.compile(r"Where page-[0-9a-f]{16} went, and why")
    )
    await expect(explanation).to_contain_text("Policy prefix chose r")
    sent = [json.loads(body) for engine in engines(front) for body in engine.bodies]
    assert [of["messages"] for of in sent] == [[{"role": "user", "content": PROMPT}]]


async def test_the_web_ui_shows_an_answer_while_it_arrives_and_can_stop_it(
    reader: Reader, front: Front
) -> None:
    for engine in engines(front):
        engine.pauses_after = 2
    box = await opened(reader)
    await send(box)
    await expect(box.locator("#trial-answer")).to_have_text("t1 t2")
    await box.get_by_role("button", name="Stop").click()
    await expect(box.get_by_role("status")).to_have_text("Stopped.")
    await expect(box.get_by_role("button", name="Stop")).to_be_hidden()
    await expect(box.locator("#trial-explanation")).to_contain_text("Its client left")


async def test_the_web_ui_shows_why_a_request_was_rejected(reader: Reader, front: Front) -> None:
    error: dict[str, Any] = {"message": "It is too long.", "type": "invalid", "code": "too_long"}
    for engine in engines(front):
        engine.answers = JSONResponse({"error": error}, 400)
    box = await opened(reader)
    await send(box)
    await expect(box.get_by_role("status")).to_contain_text("400: It is too long.")
    await expect(box.locator("#trial-explanation")).to_contain_text("The request was invalid")


async def test_a_test_request_is_removed_when_another_user_signs_in(reader: Reader) -> None:
    box = await opened(reader)
    await send(box)
    await expect(box.locator("#trial-explanation")).to_contain_text("Policy prefix")
    await reader.page.get_by_role("button", name="Sign out").click()
    await expect(reader.page.get_by_label("API key")).to_be_visible()
    for part in ("answer", "explanation", "state"):
        assert await box.locator(f"#trial-{part}").text_content() == ""
    assert await box.get_by_label("Prompt").input_value() == ""
