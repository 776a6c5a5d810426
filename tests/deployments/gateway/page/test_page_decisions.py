"""The decisions on the page at /antefix/, in a real browser: each is shown, found and explained."""

import pytest
from playwright.async_api import Browser, expect

from deployments.gateway.record import explanations
from tests.deployments.gateway.page.reading import SLO, Reader, failed, reading, rejected, served
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, TENANT, Front, gateway_before
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_decision_opens_by_keyboard_and_shows_its_reason(
    reader: Reader, front: Front
) -> None:
    shadow = {"policy": "random", "replica_id": "r9", "cached_tokens": 3, "predicted_ttft": 0.1}
    loss = {"routing": 34, "index": 0, "engine": 0}
    reuse = {"new_tokens": 12, "reuse_loss_tokens": loss}
    other = {"replica_id": "r8", "predicted_ttft": 0.5, "regret": 1.5}
    reuse |= {"alternative": other, "shadow": shadow | {"regret": 2.5}}
    told = await served(front, "first", request_id="second", **reuse)
    await reader.opens()
    await reader.decision("second").locator("summary").first.press("Enter")
    body = reader.decision("second").locator(".explanation")
    await expect(body).to_contain_text(f"Policy prefix chose {told['candidates'][0]['replica_id']}")
    await expect(body).to_contain_text("12\u00a0tok are new: no replica held them. Lost 34")
    await expect(body).to_contain_text("Lost 34\u00a0tok to routing")
    await expect(body).to_contain_text("would have chosen r9")
    await expect(body).to_contain_text("Regret 2.50\u00a0s")
    await expect(body).to_contain_text("r8 was predicted to take 500\u00a0ms.")
    await expect(body).to_contain_text("The first token came 1.50\u00a0s later than that.")
    candidates = body.get_by_role("table", name="Candidates, best first")
    await expect(candidates.get_by_role("row")).to_have_count(3)


async def test_the_page_shows_from_which_replica_a_prefix_was_pulled(
    reader: Reader, front: Front
) -> None:
    told = await served(front, "first")
    tiers = {"host_tokens": 64, "host_load": 0.5, "peer_tokens": 1024, "peer_load": 1.5}
    ways = {"peer": 2.0, "host": 2.5, "compute": 3.0}
    more = {"peer": "r7", "raw_ttft": 2.0, "wait": 0.0, "ways": ways}
    pulling = told["candidates"][0] | tiers | more
    await served(front, "other", request_id="pulled", candidates=[pulling])
    await reader.opens()
    await reader.decision("pulled").locator("summary").first.click()
    body = reader.decision("pulled").locator(".explanation")
    await expect(body).to_contain_text("64 loaded, 1,024 pulled from r7")
    await expect(body).to_contain_text("2.00 s + 0 ms")
    await expect(body).to_contain_text("peer 2.00\u00a0s, host 2.50\u00a0s, compute 3.00\u00a0s")


async def test_the_page_shows_each_phase_of_a_request(reader: Reader, front: Front) -> None:
    took = {"predicted": 1.0, "engine": 2.0, "observed": 5.5}
    phases = {"upload_s": 9.0, "read_s": 0.5, "queued_s": 3.0, "retry_s": 0.0, "engine_s": 2.0}
    await served(front, "first", request_id="slow", ttft_s=took, phases=phases)
    await reader.opens()
    await reader.decision("slow").locator("summary").first.click()
    body = reader.decision("slow").locator(".explanation")
    await expect(body).to_contain_text("9.00 s to upload it (not counted)")
    await expect(body).to_contain_text("3.00 s queued for its turn, 2.00 s in the engine")
    await expect(body).to_contain_text("predicted 1.00 s (off by 50%)")


async def test_the_page_shows_the_budget_in_words(reader: Reader, front: Front) -> None:
    requests = {"model": "", "kind": "requests", "limit": 60, "left": 59}
    tokens = {"model": MODEL, "kind": "tokens", "limit": 5000, "left": 4400}
    budget = {"tokens": 600, "limits": [requests, tokens], "exhausted": None, "by_share": False}
    told = await served(front, "first", request_id="charged", budget=budget)
    empty = {**budget, "limits": [{**requests, "left": 0}], "exhausted": "requests"}
    over = rejected({**told, "budget": empty}, "over")
    front.gateway.parts.explanations.keep(TENANT, "over", {**over, "candidates": []})
    await reader.opens()
    for request_id, said in (
        ("charged", "It took at most 600\u00a0tok; 59 left of 60 requests a minute"),
        ("charged", f"4,400 left of 5,000 tokens a minute of {MODEL}."),
        ("over", "No room: its tenant may have no more requests a minute; 0 left of 60"),
        ("over", "No replica: it was not placed."),
    ):
        decision = reader.decision(request_id)
        if not await decision.locator(".explanation").is_visible():
            await decision.locator("summary").first.click()
        await expect(decision.locator(".explanation")).to_contain_text(said)


async def test_an_open_decision_stays_open_when_others_arrive(reader: Reader, front: Front) -> None:
    await served(front, "first")
    await reader.opens()
    await reader.decision("first").locator("summary").first.click()
    await served(front, "second")
    await expect(reader.decisions()).to_have_count(2)
    await expect(reader.decisions().last.locator(".explanation")).to_be_visible()


async def test_decisions_are_filtered_by_text_and_by_outcome(reader: Reader, front: Front) -> None:
    late = {"predicted": 0.2, "observed": 31.0}
    told = await served(front, "first", request_id="slow", ttft_s=late)
    front.gateway.parts.explanations.keep(TENANT, "full", rejected(told, "full"))
    await reader.opens()
    await expect(reader.decisions()).to_have_count(3)
    only = reader.page.get_by_role("group", name="Which decisions")
    for name, request_id in (("Missed SLO", "slow"), ("Rejected", "full")):
        await only.get_by_text(name).click()
        await expect(reader.decisions()).to_have_count(1)
        await expect(reader.decision(request_id)).to_be_visible()
    await only.get_by_text("All").click()
    await reader.page.get_by_role("searchbox").fill("FIR")
    await expect(reader.decisions()).to_have_count(1)
    await expect(reader.page.locator("#count")).to_have_text("1 of 3")
    await reader.page.get_by_role("searchbox").fill("nothing like it")
    await expect(reader.page.locator("#no-decisions")).to_contain_text("None of the last")
    await expect(reader.page.locator("#pools")).to_contain_text("1 late, 1 rejected, 0 failed")


async def test_an_answer_that_was_complete_too_late_missed_its_slo(
    reader: Reader, front: Front
) -> None:
    await served(front, "first", request_id="long", duration_s=61.0, slo_e2e_s=60.0)
    await reader.opens()
    await expect(reader.page.locator("#pools")).to_contain_text("1 late, 0 rejected, 0 failed")
    await reader.decision("long").locator("summary").first.click()
    body = reader.decision("long").locator(".explanation")
    await expect(body).to_contain_text("the whole answer within 60 s")


async def test_a_failed_request_is_listed_and_lowers_the_goodput(
    browser: Browser, server: RedisProcess
) -> None:
    with control(server) as client:
        client.flushall()
    engine = FakeEngine("r0")
    async with (
        gateway_before(engine, redis_url=server.url, pool=SLO) as front,
        reading(browser, front) as reader,
    ):
        for request_id in ("first", "second", "third"):
            await served(front, request_id)
        await failed(front, engine, "too-late")
        async with front.post(model="no-such", headers={"x-request-id": "wrong"}) as answer:
            await front.explanation_of(answer.headers)
        await reader.opens()
        figures = reader.page.locator("#pools .figures")
        said = "Goodput75%0 late, 0 rejected, 1 failed"
        await expect(figures).to_contain_text(said)
        only = reader.page.get_by_role("group", name="Which decisions")
        for name, request_id in (
            ("Missed SLO", "too-late"),
            ("Failed", "too-late"),
            ("Invalid", "wrong"),
        ):
            await only.get_by_text(name).click()
            await expect(reader.decisions()).to_have_count(1)
            await expect(reader.decision(request_id)).to_be_visible()
        await reader.decision("wrong").locator("summary").first.click()
        body = reader.decision("wrong").locator(".explanation")
        await expect(body).to_contain_text("The request was invalid")
        await expect(body).to_contain_text("404 model_not_found")
        await reader.opens(f"#request=too-late&key={KEY}")
        body = reader.decision("too-late").locator(".explanation")
        await expect(body).to_contain_text("Its time was up after ")
        await expect(body).to_contain_text("while r0 had it, before its first token (504 deadline")
        await expect(body.get_by_role("table")).to_contain_text("sent there")
        assert reader.faults == []


async def test_an_invalid_request_is_no_failure_and_does_not_count(
    reader: Reader, front: Front
) -> None:
    wrong = {"outcome": "invalid", "status": 400, "error": "invalid_value", "replica": None}
    unanswered = {"ttft_s": None, "cached_tokens": None, "tpot_s": None}
    await served(front, "first", request_id="wrong", **wrong, **unanswered)
    await reader.opens()
    pools = reader.page.locator("#pools")
    said = "Goodput100%0 late, 0 rejected, 0 failed, 1 not counted"
    await expect(pools.locator(".figures")).to_contain_text(said)
    await expect(pools.locator(".chart path.uncounted")).to_have_count(1)
    await expect(pools.locator(".chart path.failed")).to_have_count(0)
    await expect(pools.locator(".promise")).to_contain_text("□ not counted")
    row = pools.get_by_role("table", name="How each class fared").get_by_role("row")
    counts = row.filter(has_text="interactive").get_by_role("cell")
    # the last columns: served, late, rejected, failed, not counted
    assert (await counts.all_inner_texts())[-5:] == ["1", "0", "0", "0", "1"]


async def test_failures_are_shown_even_if_they_are_not_among_the_last_hundred_decisions(
    browser: Browser, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "DECISIONS", 2)
    with control(server) as client:
        client.flushall()
    engine = FakeEngine("r0")
    async with (
        gateway_before(engine, redis_url=server.url, pool=SLO) as front,
        reading(browser, front) as reader,
    ):
        await failed(front, engine, "too-late")
        for request_id in ("first", "second", "third"):
            await served(front, request_id)
        await reader.opens()
        await expect(reader.decisions()).to_have_count(2)
        await reader.page.get_by_role("group", name="Which decisions").get_by_text("Failed").click()
        await expect(reader.decision("too-late")).to_be_visible()


async def test_a_client_that_left_counts_only_if_it_had_waited_longer_than_promised(
    reader: Reader, front: Front
) -> None:
    left = {"ttft_s": None, "outcome": "cancelled", "status": 499, "stage": "engine"}
    await served(front, "first", request_id="soon", duration_s=1.0, **left)
    await served(front, "second", request_id="patient", duration_s=31.0, **left)
    await reader.opens()
    figures = reader.page.locator("#pools .figures")
    await expect(figures).to_contain_text("Goodput67%1 late, 0 rejected, 0 failed")


async def test_one_explanation_may_represent_several_requests(reader: Reader, front: Front) -> None:
    told = await served(front, "first")
    front.gateway.parts.explanations.keep(
        TENANT, "full", rejected(told, "full") | {"stands_for": 9}
    )
    await reader.opens()
    await expect(reader.page.locator("#pools .figures")).to_contain_text("Goodput10%")


async def test_the_parts_of_a_prediction_add_up_and_its_cost_is_not_shown_as_a_time(
    reader: Reader, front: Front
) -> None:
    told = await served(front, "first")
    candidate = told["candidates"][0] | {
        "predicted_ttft": 0.088,
        "raw_ttft": 0.174,
        "wait": 0.0,
        "step_under_way": 0.0,
        "score": 0.695,
    }
    told |= {"request_id": "uncorrected", "candidates": [candidate]}
    front.gateway.parts.explanations.keep(TENANT, "uncorrected", told)
    await reader.opens()
    await reader.decision("uncorrected").locator("summary").first.click()
    row = reader.decision("uncorrected").locator(".candidates tbody tr").first
    await expect(row.get_by_role("cell").nth(0)).to_have_text("88\u00a0ms")
    parts = "0\u00a0ms + 0\u00a0ms + 174\u00a0ms \u2212 86\u00a0ms = 88\u00a0ms"
    await expect(row.get_by_role("cell").nth(1)).to_contain_text(parts)
    await expect(row.get_by_role("cell").nth(3)).to_have_text("0.695")


async def test_a_link_opens_its_request(reader: Reader, front: Front) -> None:
    for request_id in ("first", "second"):
        await served(front, request_id)
    await reader.opens(f"#request=first&key={KEY}")
    await expect(reader.decision("first").locator(".explanation")).to_be_visible()
    assert reader.page.url.endswith("/antefix/#request=first")


async def test_nothing_changes_while_the_web_ui_is_paused(reader: Reader, front: Front) -> None:
    await reader.page.clock.install()
    await served(front, "first")
    await reader.opens()
    await expect(reader.decisions()).to_have_count(1)
    await reader.page.get_by_role("button", name="Pause").click()
    await served(front, "second")
    reader.asked.clear()
    await reader.page.clock.run_for(60_000)  # it refreshes every 2 s
    assert await reader.decisions().count() == 1
    assert reader.asked == []
    await reader.page.get_by_role("button", name="Pause").click()
    await expect(reader.decisions()).to_have_count(2)


async def test_an_operator_sees_the_tenant_of_each_decision(
    browser: Browser, server: RedisProcess
) -> None:
    with control(server) as client:
        client.flushall()
    tenants = {TENANT: {"operator": True}}
    async with (
        gateway_before(FakeEngine(), redis_url=server.url, tenants=tenants) as front,
        reading(browser, front) as reader,
    ):
        headers = {"authorization": f"Bearer {OTHER_KEY}", "x-request-id": "theirs"}
        async with front.post(headers=headers) as answer:
            assert answer.status == 200
        await reader.opens()
        await expect(reader.decision("theirs").locator(".tenant")).to_contain_text("other")
        await expect(reader.page.locator("#whose")).to_have_text("of all tenants")
