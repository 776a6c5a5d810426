"""A gateway is killed in mid-stream: its client has the rest through another, byte for byte."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.gateway.answer.resuming import CLIENT_EVENTS_HEADER, RESUME_HEADER
from deployments.gateway.gateway import Gateway
from deployments.wire.headers import HELD_HEADER, HELD_PATH, HOLD_HEADER, READER_HEADER
from router.budgets import Granted
from router.redis_client import connect
from tests.contract import events_of
from tests.fakes.engine import FakeEngine
from tests.fakes.front import OTHER_KEY, REDIS_NAME, TENANT, Front, gateway_before
from tests.router.budget_redis import open_up
from tests.sentences import assert_sentences
from tests.waiting import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENS, PAUSE = 8, 3
HOLD_S = 60.0


@dataclass
class Fleet:
    """Two gateways before the same two engines."""

    here: Front
    there: Front
    first: FakeEngine
    second: FakeEngine

    def sees(self, *engines: FakeEngine) -> None:
        self.here.sees(*engines)
        self.there.sees(*engines)


async def begun(
    stack: AsyncExitStack, hold_s: float = HOLD_S, small: FakeEngine | None = None, **more: Any
) -> Fleet:
    first, second = FakeEngine("r1"), FakeEngine("r2")
    second.created = first.created
    limits = {"resume_within_s": hold_s, "request_timeout_s": 60.0, **more}
    before = gateway_before(first, second, small=small, **limits)
    here = await stack.enter_async_context(before)
    beside = gateway_before(first, second, small=small, starts_engines=False, **limits)
    there = await stack.enter_async_context(beside)
    return Fleet(here, there, first, second)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield await begun(stack)


def fields_of(path: str = CHAT, **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": "hello"} if path == COMPLETIONS else {}
    return {"max_tokens": TOKENS, "stream": True, **prompt, **fields}


def resuming(stream_id: str, events: object, **more: str) -> dict[str, str]:
    return {RESUME_HEADER: stream_id, CLIENT_EVENTS_HEADER: str(events), **more}


@dataclass
class Cut:
    """What a client has of a stream whose gateway was killed."""

    id: str
    has: bytes
    events: int


async def cut_after(fleet: Fleet, events: int, path: str = CHAT, **fields: Any) -> Cut:
    """The engine pauses, so that it has not made all of it."""
    for engine in (fleet.first, fleet.second):
        engine.pauses_after = PAUSE
    has = b""
    request = fleet.here.post(path, {"x-request-id": "abc"}, **fields_of(path, **fields))
    answer = await request.__aenter__()
    async with asyncio.timeout(60):
        for _ in range(events):
            has += await answer.content.readuntil(b"\n\n")
    stream_id = answer.headers[RESUME_HEADER]
    fleet.here.is_killed()
    return Cut(stream_id, has, events)


def go_on(fleet: Fleet) -> None:
    for engine in (fleet.first, fleet.second):
        engine.pauses_after = None
        engine.go_on.set()


async def rest_of(fleet: Fleet, cut: Cut, path: str = CHAT, **fields: Any) -> bytes:
    request = fleet.there.post(path, resuming(cut.id, cut.events), **fields_of(path, **fields))
    async with request as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers[RESUME_HEADER] == cut.id
        go_on(fleet)
        return bytes(await answer.read())


async def undisturbed(fleet: Fleet, path: str = CHAT, **fields: Any) -> bytes:
    request = fleet.there.post(path, {"x-request-id": "abc"}, **fields_of(path, **fields))
    async with request as answer:
        return bytes(await answer.read())


async def error_of(answer: aiohttp.ClientResponse, status: int, code: str) -> str:
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (status, code), error
    assert_sentences(error["message"])
    return str(error["message"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("resumable", [True, False])
async def test_the_rest_follows_byte_for_byte(fleet: Fleet, path: str, resumable: bool) -> None:
    fleet.first.offers_resumable = resumable
    fleet.sees(fleet.first)
    whole = await undisturbed(fleet, path)
    for events in range(1, PAUSE + 1):
        cut = await cut_after(fleet, events, path)
        assert 0 < len(cut.has) < len(whole)
        assert cut.has + await rest_of(fleet, cut, path) == whole
    assert fleet.first.aborted == 0
    await until(lambda: fleet.first.running == 0 and fleet.first.finished == PAUSE + 1)
    # nothing was placed again, and no request waits for a place
    assert len(fleet.first.bodies) == PAUSE + 1 and not fleet.second.bodies
    assert fleet.there.handle.waiting == 0


async def test_a_client_that_has_all_of_it_gets_nothing_more(fleet: Fleet) -> None:
    whole = await undisturbed(fleet)
    events = whole.count(b"\n\n")
    async with fleet.here.post(headers={"x-request-id": "abc"}, **fields_of()) as answer:
        has, stream_id = bytes(await answer.read()), answer.headers[RESUME_HEADER]
    assert has == whole
    for count, rest in ((events, b""), (events - 1, b"data: [DONE]\n\n"), (0, whole)):
        assert await rest_of(fleet, Cut(stream_id, b"", count)) == rest


async def test_a_stream_can_be_resumed_again_and_the_last_reader_gets_it(fleet: Fleet) -> None:
    cut = await cut_after(fleet, 2)
    headers = resuming(cut.id, cut.events)
    one = await fleet.there.post(headers=headers, **fields_of()).__aenter__()
    has = cut.has + await one.content.readuntil(b"\n\n")
    cut = Cut(cut.id, has, cut.events + 1)
    rest = await rest_of(fleet, cut)
    # the previous reader is notified
    *_, last = await events_of(one)
    error = json.loads(last)["error"]
    assert error["code"] == "taken_over"
    assert_sentences(error["message"])
    assert cut.has + rest == await undisturbed(fleet)
    assert fleet.first.aborted == fleet.second.aborted == 0


async def test_the_reader_at_a_living_gateway_is_notified_and_pays_in_full(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(redis_url) as redis:
        await open_up(redis, REDIS_NAME)
    limit = {"limits": {"tokens_per_minute": 10_000}}
    async with AsyncExitStack() as stack:
        fleet = await begun(stack, redis_url=redis_url, tenants={TENANT: limit})
        budgets = fleet.here.gateway.parts.budgets
        await until(lambda: not budgets.by_share)
        used: list[tuple[int, int]] = []
        settle = budgets.ledger.settle

        def settled(granted: Granted, tokens: int, requests: int = 1) -> None:
            used.append((granted.tokens, tokens))
            settle(granted, tokens, requests)

        monkeypatch.setattr(budgets.ledger, "settle", settled)
        fleet.first.pauses_after = fleet.second.pauses_after = PAUSE
        one = await fleet.here.post(headers={"x-request-id": "abc"}, **fields_of()).__aenter__()
        assert one.status == 200, await one.text()
        cut = Cut(one.headers[RESUME_HEADER], await one.content.readuntil(b"\n\n"), 1)
        rest = await rest_of(fleet, cut)
        assert json.loads((await events_of(one))[-1])["error"]["code"] == "taken_over"
        await until(lambda: len(used) == 1)
        ((granted, counted),) = used
        assert granted == counted > TOKENS
        # who has the rest is not charged
        assert not fleet.there.gateway.parts.budgets.under_way
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_without_the_setting_nothing_is_kept_and_resuming_returns_an_error() -> None:
    async with AsyncExitStack() as stack:
        fleet = await begun(stack, hold_s=0.0)
        fleet.first.pauses_after = PAUSE
        fleet.sees(fleet.first)
        answer = await fleet.here.post(**fields_of()).__aenter__()
        assert RESUME_HEADER not in answer.headers
        assert HOLD_HEADER not in fleet.first.headers[-1]
        fleet.here.is_killed()
        await until(lambda: fleet.first.aborted == 1)
        async with fleet.there.post(headers=resuming("x", 1), **fields_of()) as answer:
            await error_of(answer, 400, "invalid_header")


async def test_answers_in_one_piece_are_not_kept(fleet: Fleet) -> None:
    async with fleet.here.post(**fields_of(stream=False)) as answer:
        assert answer.status == 200 and RESUME_HEADER not in answer.headers
    assert HOLD_HEADER not in (fleet.first.headers + fleet.second.headers)[0]


async def test_an_error_is_passed_on_and_not_kept(fleet: Fleet) -> None:
    async with fleet.here.post(**fields_of(max_tokens=-1)) as answer:
        assert answer.status == 400 and RESUME_HEADER not in answer.headers
    assert not len(fleet.first.held) + len(fleet.second.held)


async def test_a_client_that_leaves_a_living_gateway_ends_its_stream_at_once(fleet: Fleet) -> None:
    fleet.first.pauses_after = PAUSE
    fleet.sees(fleet.first)
    answer = await fleet.here.post(**fields_of()).__aenter__()
    stream_id = answer.headers[RESUME_HEADER]
    answer.close()
    await until(lambda: fleet.first.aborted == 1)
    async with fleet.there.post(headers=resuming(stream_id, 1), **fields_of()) as answer:
        await error_of(answer, 404, "unknown_stream")
    # who has the rest and leaves, too
    cut = await cut_after(fleet, 1)
    answer = await fleet.there.post(headers=resuming(cut.id, 1), **fields_of()).__aenter__()
    assert fleet.first.aborted == 1
    answer.close()
    await until(lambda: fleet.first.aborted == 2)


async def test_a_client_that_does_not_come_frees_its_engine() -> None:
    async with AsyncExitStack() as stack:
        fleet = await begun(stack, hold_s=0.2)
        fleet.sees(fleet.first)
        cut = await cut_after(fleet, 1)
        await until(lambda: fleet.first.aborted == 1)
        assert not len(fleet.first.held) and fleet.first.held.held_bytes == 0
        await until(lambda: fleet.first.tickets.running == 0)
        headers = resuming(cut.id, cut.events)
        async with fleet.there.post(headers=headers, **fields_of()) as answer:
            await error_of(answer, 404, "unknown_stream")


async def test_every_request_for_an_unavailable_stream_gets_the_same_error(fleet: Fleet) -> None:
    """Another tenant's key learns nothing of a stream, not even that it is there."""
    cut = await cut_after(fleet, 2)
    ticket, signature, replica = cut.id.split("-")
    told, asked = set(), fleet.first.bodies + fleet.second.bodies
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    for stream_id, headers, path, fields in (
        (cut.id, other, CHAT, {}),
        (cut.id, {}, CHAT, {"max_tokens": TOKENS + 1}),
        (cut.id, {}, COMPLETIONS, {}),
        (f"{ticket}-{'0' * 32}-{replica}", {}, CHAT, {}),
        (f"{'0' * 32}-{signature}-{replica}", {}, CHAT, {}),
        (f"{ticket}-{signature}-r2", {}, CHAT, {}),
        (f"{ticket}-{signature}-r9", {}, CHAT, {}),
        ("abc", other, CHAT, {}),
        ("", {}, CHAT, {}),
    ):
        sent = {**resuming(stream_id, 2), **headers}
        request = fleet.there.post(path, sent, **fields_of(path, **fields))
        async with request as answer:
            told.add(await error_of(answer, 404, "unknown_stream"))
            assert RESUME_HEADER not in answer.headers
    assert len(told) == 1
    assert fleet.first.bodies + fleet.second.bodies == asked
    # and it is there still
    assert cut.has + await rest_of(fleet, cut) == await undisturbed(fleet)


@pytest.mark.parametrize("events", ["", "-1", "1.5", "x", "1" * 10, "٣"])
async def test_a_number_of_events_that_is_none_is_refused(fleet: Fleet, events: str) -> None:
    cut = await cut_after(fleet, 1)
    async with fleet.there.post(headers=resuming(cut.id, events), **fields_of()) as answer:
        await error_of(answer, 400, "invalid_header")
    assert cut.has + await rest_of(fleet, cut) == await undisturbed(fleet)


async def test_a_request_for_too_many_events_is_refused_and_disturbs_no_reader(
    fleet: Fleet,
) -> None:
    cut = await cut_after(fleet, 1)
    async with fleet.there.post(headers=resuming(cut.id, 99), **fields_of()) as answer:
        assert "99" in await error_of(answer, 400, "invalid_header")
    assert cut.has + await rest_of(fleet, cut) == await undisturbed(fleet)


async def test_any_id_is_answered_with_a_status_of_the_clients(fleet: Fleet) -> None:
    cut = await cut_after(fleet, 1)
    loop = asyncio.get_running_loop()
    printable = st.characters(min_codepoint=0x20, max_codepoint=0x7E)

    async def send(stream_id: str, events: str) -> None:
        headers = resuming(stream_id, events)
        async with fleet.there.post(headers=headers, **fields_of()) as answer:
            assert answer.status in (400, 404), await answer.text()
            assert_sentences((await answer.json())["error"]["message"])

    @settings(
        max_examples=settings().max_examples // 2,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        stream_id=st.text(printable, max_size=200)
        | st.from_regex(r"[0-9a-f]{32}-[0-9a-f]{32}-r[12]", fullmatch=True)
        | st.integers(0, len(cut.id) - 1).map(lambda at: cut.id[:at] + "~" + cut.id[at + 1 :]),
        events=st.just("1") | st.text(printable, max_size=12) | st.integers().map(str),
    )
    def check(stream_id: str, events: str) -> None:
        asyncio.run_coroutine_threadsafe(send(stream_id, events), loop).result(60)

    await asyncio.to_thread(check)
    assert cut.has + await rest_of(fleet, cut) == await undisturbed(fleet)


async def test_its_engine_may_be_lost_as_well(fleet: Fleet) -> None:
    fleet.sees(fleet.first, fleet.second)
    fleet.there.sees(fleet.first)
    whole = await undisturbed(fleet)
    cut = await cut_after(fleet, 2)
    fleet.there.sees(fleet.first, fleet.second)
    headers = resuming(cut.id, cut.events)
    async with fleet.there.post(headers=headers, **fields_of()) as answer:
        has = cut.has + await answer.content.readuntil(b"\n\n")
        fleet.second.pauses_after = None
        fleet.first.break_off()
        assert has + await answer.read() == whole
    assert fleet.second.went_on_with
    # no gateway asked the engine to stop: its gateway could not
    go_on(fleet)


async def test_an_engine_that_a_stream_moved_away_from_stops_at_once(redis_url: str) -> None:
    async with AsyncExitStack() as stack:
        fleet = await begun(stack, redis_url=redis_url, move_after_s=0.0)
        engines = fleet.first, fleet.second
        for engine in engines:
            engine.pauses_after = PAUSE
        answer = await fleet.here.post(**fields_of()).__aenter__()
        left, other = engines if fleet.first.running else engines[::-1]
        other.pauses_after, left.leaving = None, True
        assert (await events_of(answer))[-1] == "[DONE]"
        assert other.went_on_with
        await until(lambda: left.aborted == 1)
        # its client was shown the stream that was left
        headers = resuming(answer.headers[RESUME_HEADER], 1)
        async with fleet.there.post(headers=headers, **fields_of()) as answer:
            await error_of(answer, 404, "unknown_stream")


async def test_a_gateway_that_is_stopped_leaves_its_streams_to_another() -> None:
    async with AsyncExitStack() as stack:
        fleet = await begun(stack, drain_timeout_s=0.5)
        fleet.first.pauses_after = fleet.second.pauses_after = PAUSE
        answer = await fleet.here.post(headers={"x-request-id": "abc"}, **fields_of()).__aenter__()
        async with asyncio.timeout(60):
            await Gateway.__del__(fleet.here.gateway)
        *has, stopped, _ = (await answer.read()).split(b"\n\n")
        assert json.loads(stopped.removeprefix(b"data: "))["error"]["code"] == "gateway_stopped"
        had = b"".join(event + b"\n\n" for event in has)
        rest = await rest_of(fleet, Cut(answer.headers[RESUME_HEADER], had, len(has)))
        assert had + rest == await undisturbed(fleet)


async def test_a_lost_engine_is_an_honest_error(fleet: Fleet) -> None:
    fleet.sees(fleet.first)
    cut = await cut_after(fleet, 2)
    await fleet.first.stop()
    async with fleet.there.post(headers=resuming(cut.id, 2), **fields_of()) as answer:
        await error_of(answer, 404, "unknown_stream")
    fleet.there.pool.scheduler.board.update([])
    fleet.there.sees()
    async with fleet.there.post(headers=resuming(cut.id, 2), **fields_of()) as answer:
        await error_of(answer, 404, "unknown_stream")


async def test_a_stream_that_overflowed_is_found_where_it_is() -> None:
    small = FakeEngine("r9", model="tiny")
    slo = {"interactive": {"ttft_s": 2.0}}
    pool = {"slo": slo, "overflow": {"to": "small", "enter": 1.0, "leave": 0.5, "max_share": 0.5}}
    only = {"x-request-id": "abc", "x-antefix-overflow": "only"}
    async with AsyncExitStack() as stack:
        fleet = await begun(stack, small=small, pool=pool)
        small.pauses_after = PAUSE
        answer = await fleet.here.post(headers=only, **fields_of()).__aenter__()
        has, stream_id = await answer.content.readuntil(b"\n\n"), answer.headers[RESUME_HEADER]
        fleet.here.is_killed()
        # a key that may not overflow does not get there
        never = resuming(stream_id, 1, **{"x-antefix-overflow": "never"})
        async with fleet.there.post(headers=never, **fields_of()) as answer:
            await error_of(answer, 404, "unknown_stream")
        async with fleet.there.post(headers=resuming(stream_id, 1), **fields_of()) as answer:
            assert answer.headers["x-antefix-model"] == "tiny"
            small.go_on.set()
            has += await answer.read()
        async with fleet.there.post(headers=only, **fields_of()) as answer:
            assert await answer.read() == has
        assert small.aborted == 0


async def test_a_resumed_stream_is_counted_and_explained(redis_url: str) -> None:
    async with AsyncExitStack() as stack:
        fleet = await begun(stack, redis_url=redis_url)
        cut = await cut_after(fleet, 2)
        go_on(fleet)
        async with fleet.there.post(headers=resuming(cut.id, 2), **fields_of()) as answer:
            await answer.read()
        explanation = await fleet.there.explanation_of(answer.headers)
        assert explanation["rejoined"] == {"events": 2}
        assert explanation["replica"] == answer.headers["x-antefix-replica"]
        metrics = await fleet.there.metrics()
        assert metrics["antefix_resumed_total", "", "rejoined"] == 1
        assert metrics["antefix_requests_total", "ok", "interactive"] == 1
        assert metrics["antefix_output_tokens_total",] == TOKENS


async def test_engines_take_no_such_visits_but_from_gateways(fleet: Fleet) -> None:
    cut = await cut_after(fleet, 1)
    named = {HELD_HEADER: cut.id.partition("-")[0], READER_HEADER: "x"}
    async with aiohttp.ClientSession() as http:
        for method in ("POST", "DELETE"):
            url = fleet.first.url + HELD_PATH
            async with http.request(method, url, headers=named) as answer:
                assert answer.status == 403
    # nor do clients reach them through one
    async with fleet.there.http.post(
        fleet.there.url + HELD_PATH, headers={**fleet.there.headers, **named}
    ) as answer:
        assert answer.status == 404
    assert cut.has + await rest_of(fleet, cut) == await undisturbed(fleet)


async def test_resuming_counts_in_a_minute_and_not_at_once(redis_url: str) -> None:
    """Two hundred a second cost the replica a pass over the whole stream each."""
    async with connect(redis_url) as redis:
        await open_up(redis, REDIS_NAME)
    limit = {"limits": {"requests_per_minute": 4, "concurrent_requests": 1}}
    async with AsyncExitStack() as stack:
        fleet = await begun(stack, redis_url=redis_url, tenants={TENANT: limit})
        here, there = fleet.here.gateway.parts.budgets, fleet.there.gateway.parts.budgets
        await until(lambda: not here.by_share and not there.by_share)
        cut = await cut_after(fleet, 2)
        asked = resuming(cut.id, cut.events)
        for _ in range(3):
            answer = await fleet.there.post(CHAT, asked, **fields_of()).__aenter__()
            assert answer.status == 200
        for stream_id in (cut.id, "0" * 32 + "-" + "0" * 32 + "-none"):
            async with fleet.there.post(CHAT, resuming(stream_id, 1), **fields_of()) as refused:
                await error_of(refused, 429, "rate_limit_exceeded")
                assert int(refused.headers["retry-after"]) > 1
        go_on(fleet)


async def test_a_stream_that_is_resumed_again_and_again_is_refused(fleet: Fleet) -> None:
    cut = await cut_after(fleet, 2)
    asked = resuming(cut.id, cut.events)
    statuses = []
    for _ in range(12):
        answer = await fleet.there.post(CHAT, asked, **fields_of()).__aenter__()
        statuses.append(answer.status)
    assert statuses == [200] * 10 + [429] * 2
    message = await error_of(answer, 429, "rate_limit_exceeded")
    assert "resumed too often" in message
    go_on(fleet)
