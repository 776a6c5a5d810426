"""The page at /antefix/, in a real browser, before a real gateway and fake engines."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from common.release import VERSION
from deployments.gateway.gateway import Gateway, application
from deployments.gateway.inference import Inference
from deployments.gateway.pool import serve_controller
from deployments.process.http_server import HttpServer
from tests.deployments.gateway.page.reading import DESKTOP, NARROW, PHONE, Reader, reading, served
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import FLEET, KEY, TENANT, Front, gateway_before
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess
from tests.some import some

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = Path(serve_controller.__file__).parents[1] / "page"
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


async def test_the_page_needs_no_key_and_its_policy_blocks_other_origins(front: Front) -> None:
    async with front.http.get(front.url + "/antefix/") as answer:
        assert answer.status == 200
        policy = answer.headers["content-security-policy"]
        text = await answer.text()
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert not re.search(r"<script(?! type=\"module\" src=\")|<style|style=|\son\w+=", text)


async def test_every_file_of_the_web_ui_is_served_and_revalidated_by_its_etag(
    front: Front,
) -> None:
    for file in some(PAGE.iterdir()):
        if file.suffix not in {".js", ".css", ".svg"}:
            continue
        url = f"{front.url}/antefix/assets/{file.name}"
        async with front.http.get(url) as answer:
            assert await answer.read() == file.read_bytes()
            assert answer.headers["cache-control"] == "no-cache"
            etag = {"if-none-match": answer.headers["etag"]}
        async with front.http.get(url, headers=etag) as again:
            assert again.status == 304


def test_no_code_of_the_web_ui_inserts_text_as_markup() -> None:
    for file in some(PAGE.glob("*.js")):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(", file.read_text())


async def test_the_web_ui_shows_replicas_and_decisions_without_errors_or_external_requests(
    reader: Reader, front: Front
) -> None:
    told = await served(front, "first")
    await reader.opens()
    replicas = reader.page.get_by_role("table", name=f"Replicas of {MODEL}")
    await expect(replicas.get_by_role("rowheader")).to_have_text(["r0", "r1"])
    row = reader.decision("first")
    for text in (MODEL, "admitted", "prefix", told["replica"]):
        await expect(row).to_contain_text(text)
    await expect(reader.page.locator("#pools")).to_contain_text(
        "Goodput100%0 late, 0 rejected, 0 failed"
    )
    assert reader.faults == []
    assert all(url.startswith(front.url) for url in reader.asked)


async def test_the_key_leaves_the_address_bar_and_outlives_a_reload(reader: Reader) -> None:
    await reader.opens(f"#key={KEY}&request=nobody")
    await expect(reader.page.locator("#fleet")).to_have_text(FLEET)
    assert KEY not in reader.page.url
    await expect(reader.page.locator("#not-found")).to_contain_text(
        "No explanation of the request 'nobody' is stored"
    )
    await reader.page.reload()
    await expect(reader.page.locator("#fleet")).to_have_text(FLEET)
    assert not [url for url in reader.asked if KEY in url.partition("#")[0]]


async def test_the_web_ui_asks_for_a_key_and_reports_a_wrong_one(reader: Reader) -> None:
    await reader.opens("")
    for wrong, complaint in (("sk-wrong", "is not valid"), ("schlüssel", "Invalid API key")):
        await reader.page.get_by_label("API key").fill(wrong)
        await reader.page.get_by_role("button", name="Show the fleet").click()
        await expect(reader.page.get_by_role("alert")).to_contain_text(complaint)
    await reader.page.get_by_label("API key").fill(KEY)
    await reader.page.keyboard.press("Enter")
    await expect(reader.page.locator("#fleet")).to_have_text(FLEET)
    await reader.page.get_by_role("button", name="Sign out").click()
    await expect(reader.page.get_by_label("API key")).to_be_visible()
    await expect(reader.page.locator("#fleet-view")).to_be_hidden()
    assert await reader.page.evaluate("sessionStorage.length") == 0


@pytest.mark.parametrize("platform", ["", "kubernetes"])
async def test_hints_depend_on_the_platform_of_the_fleet(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, platform: str, ray: dict[str, dict[str, int]]
) -> None:
    monkeypatch.setenv("ANTEFIX_PLATFORM", platform)
    ray["main"] = {}
    key, logs = "antefix env", "antefix logs"
    if platform:
        key, logs = "antefix k8s key", "antefix k8s status"
    async with gateway_before() as front, reading(browser, front) as reader:
        await reader.opens("#key=sk-wrong")
        await expect(reader.page.get_by_role("alert")).to_contain_text(key)
        await expect(reader.page.locator("#sign-in")).to_contain_text(key)
        await reader.opens()
        await expect(reader.page.locator(".replicas")).to_contain_text(logs)
        text = await reader.page.locator("body").inner_text()
        assert ("antefix env" in text or "antefix logs" in text) == (not platform)


async def test_the_version_is_shown_to_those_who_have_a_key(reader: Reader) -> None:
    await reader.opens("")
    await expect(reader.page.locator("#sign-in")).to_be_visible()
    assert VERSION not in await reader.page.content()
    await reader.opens()
    await expect(reader.page.locator("footer")).to_contain_text(f"Antefix {VERSION}")


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", 307),
        ("text/html", 307),
        ("*/*", 404),
        ("application/json", 404),
        ("application/json, text/html;q=0", 404),
        ("", 404),
    ],
)
async def test_the_root_redirects_browsers_to_the_page_and_returns_programs_an_error(
    front: Front, accept: str, status: int
) -> None:
    url = f"{front.url}/"
    async with front.http.get(url, headers={"accept": accept}, allow_redirects=False) as answer:
        assert answer.status == status
        if status == 307:
            assert answer.headers["location"] == "antefix/"
        else:
            assert (await answer.json())["error"]["code"] == "unknown_url"


async def test_a_browser_at_the_root_arrives_at_the_page(reader: Reader) -> None:
    await reader.page.goto(f"{reader.front.url}/")
    await expect(reader.page.locator("#sign-in")).to_be_visible()
    assert reader.page.url == f"{reader.front.url}/antefix/"


async def test_names_that_are_markup_stay_text(reader: Reader, front: Front) -> None:
    told = await served(front, "first")
    told["admission"]["reason"] = HOSTILE
    hostile = dict.fromkeys(("request_id", "tenant", "model", "policy", "replica"), HOSTILE)
    front.gateway.parts.explanations.keep(TENANT, HOSTILE, {**told, **hostile})

    def renamed(fleet: dict[str, Any]) -> dict[str, Any]:
        pool = fleet["pools"].pop("main")
        for replica in pool["replicas"]:
            replica |= {"replica": HOSTILE, "role": HOSTILE, "node_ip": HOSTILE}
        pool |= {"model": HOSTILE, "policy": HOSTILE, "states": {HOSTILE: 1}}
        limit = {"model": HOSTILE, "kind": HOSTILE, "limit": 2, "left": 1}
        tenants = [{"tenant": HOSTILE, "last_hour": {}, "limits": [limit]}]
        names = {"fleet": HOSTILE, "gateways": {HOSTILE: 1}, "pools": {HOSTILE: pool}}
        return fleet | names | {"tenants": tenants}

    await reader.is_told(renamed)
    await reader.opens()
    await expect(reader.decisions()).to_have_count(2)
    await reader.decisions().first.locator("summary").first.click()
    await expect(reader.decisions().first.locator(".explanation")).to_contain_text(HOSTILE)
    await expect(reader.page.locator(".about .model")).to_have_text(HOSTILE)
    await expect(reader.page.locator("#fleet")).to_have_text(HOSTILE)
    await expect(reader.page.locator("#tenant-rows")).to_contain_text(HOSTILE)
    assert await reader.page.locator("main img, main script").count() == 0
    assert await reader.page.title() == f"{HOSTILE} · Antefix"
    assert reader.faults == []


async def test_the_page_shows_the_loss_and_return_of_its_gateway(
    reader: Reader, front: Front
) -> None:
    await reader.opens()
    await expect(reader.page.locator("#fleet")).to_have_text(FLEET)
    gateway: Gateway = front.gateway
    await gateway.server.drain()
    notice = reader.page.get_by_role("status").filter(has_text="The gateway does not answer")
    await expect(notice).to_contain_text("What you see is of")
    gateway.server = HttpServer(application(gateway.parts, Inference(gateway.parts)))
    await gateway.server.start("127.0.0.1", int(front.url.rpartition(":")[2]))
    await expect(notice).to_have_count(0)


async def test_the_web_ui_reports_that_redis_is_unavailable(browser: Browser) -> None:
    async with gateway_before(FakeEngine()) as front, reading(browser, front) as reader:
        await reader.opens()
        await expect(reader.page.locator("#notices")).to_contain_text("Redis is unavailable")
        await expect(reader.page.locator("#pools")).to_contain_text("placing by load")


async def test_without_redis_the_page_shows_the_replicas_that_serve_runs(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = {"main": {"r7": "10.0.0.7"}}
    monkeypatch.setattr(serve_controller, "ask_running", lambda: running)
    async with gateway_before(FakeEngine()) as front, reading(browser, front) as reader:
        front.goes_blind()
        await reader.opens()
        cells = reader.page.get_by_role("table", name=f"Replicas of {MODEL}").locator(
            "tbody tr > *"
        )
        await expect(cells).to_have_text(["r7", "unknown", "10.0.0.7", *"??????"])


async def test_the_web_ui_shows_what_a_starting_fleet_lacks(
    browser: Browser, server: RedisProcess, ray: dict[str, dict[str, int]]
) -> None:
    with control(server) as client:
        client.flushall()
    ray["main"] = {"STARTING": 2}
    async with gateway_before(redis_url=server.url) as front, reading(browser, front) as reader:
        await reader.opens()
        await expect(reader.page.locator(".replicas")).to_contain_text("No replica serves yet: 2")
        await expect(reader.page.locator(".figures .bad")).to_contain_text("Replicas0 of 1")
        await expect(reader.page.locator("#no-decisions")).to_contain_text("No decisions yet")


@pytest.mark.parametrize("viewport", [NARROW, PHONE, DESKTOP], ids=["narrow", "phone", "desktop"])
async def test_nothing_is_wider_than_the_window(
    browser: Browser, front: Front, viewport: dict[str, int]
) -> None:
    await served(front, "x" * 128)
    async with reading(browser, front, viewport) as reader:
        await reader.opens(f"#request={'x' * 128}&key={KEY}")
        await expect(reader.decisions().first.locator(".explanation")).to_be_visible()
        assert await reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_reader_without_operator_rights_sees_no_loads_and_no_fault(
    browser: Browser, server: RedisProcess
) -> None:
    with control(server) as client:
        client.flushall()
    async with (
        gateway_before(FakeEngine("r0"), redis_url=server.url, tenants={}) as front,
        reading(browser, front) as reader,
    ):
        await served(front, "mine")
        await reader.opens()
        replicas = reader.page.get_by_role("table", name=f"Replicas of {MODEL}")
        await expect(replicas).to_contain_text("r0")
        await expect(replicas).not_to_contain_text("127.0.0.1")
        await reader.decision("mine").locator("summary").first.press("Enter")
        body = reader.decision("mine").locator(".explanation")
        candidates = body.get_by_role("table", name="Candidates, best first")
        columns = candidates.get_by_role("columnheader")
        await expect(columns).to_have_text(["Candidate", "Cached", "Index"])
        assert reader.faults == []
