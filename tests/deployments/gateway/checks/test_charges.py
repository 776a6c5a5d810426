"""A request is charged what its engine's counts say, however its answer ends.

Without counts, a request that was sent is charged its reservation. An engine that refused it before
it generated anything charges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import aiohttp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from deployments.wire.field_table import taken_by
from tests.every_field.spending import Spending
from tests.fakes.engine import FakeEngine
from tests.fakes.front import TENANT, Front, gateway_before
from tests.fakes.limited_front import LENGTH, limited
from tests.waiting import until

PROMPT, MOST, MORE = 10, 200, 5
# One for each request, because lost requests change how a tenant's next ones are retried.
TENANTS = tuple(f"tenant-{number}" for number in range(200))
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"

Ending = Literal["complete", "invalid", "failed", "left", "deadline", "lost", "resumed"]
ENDINGS: tuple[Ending, ...] = (
    *("complete", "invalid", "failed", "left", "deadline", "lost", "resumed"),
)


@dataclass(frozen=True)
class Case:
    """A request whose answer ends after `made` tokens. `tells_ids`: another engine may resume it.
    `interval`: the tokens of each event."""

    path: str
    ending: Ending
    made: int
    streams: bool
    tells_ids: bool
    interval: int = 1


CASES = st.builds(
    Case,
    path=st.sampled_from([CHAT, COMPLETIONS, MESSAGES]),
    ending=st.sampled_from(ENDINGS),
    made=st.integers(0, 60),
    streams=st.booleans(),
    tells_ids=st.booleans(),
    interval=st.sampled_from([1, 7, 99]),
)


@dataclass(frozen=True)
class Gateway:
    """One gateway before two engines, of which the first is the best."""

    front: Front
    first: FakeEngine
    second: FakeEngine
    spending: Spending


@asynccontextmanager
async def one_gateway() -> AsyncIterator[Gateway]:
    engines = first, second = FakeEngine("r0", limit=99), FakeEngine("r1", limit=99)
    for engine in engines:
        engine.prompt_cache = lambda fields: (PROMPT, 0)
    pool = {"engine_args": {"max_model_len": LENGTH}}
    limits = {"limits": {"tokens_per_minute": 10**9}}
    tenants = dict.fromkeys((TENANT, *TENANTS), limits)
    async with gateway_before(*engines, pool=pool, tenants=tenants) as front:
        front.accepts({f"sk-{tenant}": tenant for tenant in TENANTS})
        spending = Spending()
        front.gateway.parts.budgets.ledger = cast(Any, spending)
        yield Gateway(front, first, second, spending)


@contextmanager
def faults_of(case: Case, gateway: Gateway) -> Iterator[None]:
    first, second = gateway.first, gateway.second
    for engine in (first, second):
        engine.made, engine.offers_resumable = 0, case.tells_ids
        engine.go_on = asyncio.Event()
    gateway.front.sees_queues({first: 0, second: 10**6})
    if case.ending in ("invalid", "failed"):
        for engine in (first, second):
            engine.fails_after = case.made
            engine.fails_with = 400 if case.ending == "invalid" else 500
    elif case.ending in ("left", "deadline"):
        first.pauses_after = second.pauses_after = case.made
    elif case.ending == "lost":
        first.dies_after = second.dies_after = case.made
    elif case.ending == "resumed":
        first.dies_after = case.made
    try:
        yield
    finally:
        for engine in (first, second):
            engine.fails_after = engine.pauses_after = engine.dies_after = None
            engine.go_on.set()


async def ended(case: Case, gateway: Gateway, tenant: str) -> tuple[int, int]:
    """Send the request, and return what it reserved and was charged."""
    before = len(gateway.spending.settled)
    fields: dict[str, Any] = {"max_tokens": MOST}
    if "stream_interval" in taken_by(case.path):
        fields["stream_interval"] = case.interval
    if case.path == COMPLETIONS:
        fields["prompt"] = "hello"
    if case.ending in ("complete", "resumed"):
        fields["max_tokens"] = max(1, case.made) + MORE * (case.ending == "resumed")
    headers = {"authorization": f"Bearer sk-{tenant}"}
    if case.ending == "deadline":
        headers["x-antefix-timeout"] = "0.5"

    async def ask() -> None:
        posting = gateway.front.post(case.path, headers, stream=case.streams, **fields)
        try:
            async with posting as answer:
                await answer.read()
        except aiohttp.ClientError:
            assert case.ending == "lost"

    asking = asyncio.create_task(ask())
    if case.ending == "left":
        engines = gateway.first, gateway.second
        await until(lambda: any(each.running and each.made == case.made for each in engines), 20)
        asking.cancel()
    await asyncio.wait({asking})
    await until(lambda: len(gateway.spending.settled) > before, 60)
    return gateway.spending.settled[-1]


def is_right(case: Case, gateway: Gateway, reserved: int, charged: int) -> bool:
    made = case.made
    if case.ending == "complete":
        made = max(1, made)
    elif case.ending == "resumed" and (case.tells_ids or not case.streams or not made):
        made = max(1, made) + MORE
    elif case.ending == "invalid" and not made:
        return charged == 0  # the engine rejected it
    elif case.ending == "failed" and case.streams and case.tells_ids:
        # another engine may refuse to resume what the client has
        return PROMPT <= charged <= PROMPT + made
    elif case.ending in ("lost", "resumed"):
        # what a lost engine said before its end, or nothing; an engine that resumes the answer
        # is already past the token with which it would have been lost
        said = case.streams or case.tells_ids
        whole = (reserved, PROMPT + MOST)
        return charged in whole or (said and PROMPT <= charged <= PROMPT + made)
    return charged == PROMPT + made


async def test_a_request_is_charged_for_the_tokens_that_the_engines_counted() -> None:
    tenants = iter(TENANTS)
    async with one_gateway() as gateway:
        loop = asyncio.get_running_loop()

        async def check(case: Case) -> None:
            with faults_of(case, gateway):
                reserved, charged = await ended(case, gateway, next(tenants))
            assert is_right(case, gateway, reserved, charged), (reserved, charged)

        @settings(max_examples=60, deadline=None)
        @given(CASES)
        @example(Case(CHAT, "invalid", 50, streams=False, tells_ids=False))
        @example(Case(CHAT, "invalid", 50, streams=False, tells_ids=True))
        @example(Case(CHAT, "invalid", 50, streams=True, tells_ids=False, interval=99))
        @example(Case(MESSAGES, "invalid", 0, streams=True, tells_ids=False))
        @example(Case(COMPLETIONS, "failed", 50, streams=False, tells_ids=False))
        @example(Case(COMPLETIONS, "lost", 50, streams=False, tells_ids=False))
        @example(Case(COMPLETIONS, "deadline", 50, streams=False, tells_ids=False))
        def holds(case: Case) -> None:
            asyncio.run_coroutine_threadsafe(check(case), loop).result(120)

        await asyncio.to_thread(holds)


@pytest.mark.parametrize("status", [400, 404, 422, 500])
async def test_an_engine_that_refused_a_request_at_once_charges_nothing(status: int) -> None:
    async with one_gateway() as gateway:
        error = {"message": "It is wrong.", "type": "BadRequestError", "param": None, "code": 1}
        for engine in (gateway.first, gateway.second):
            engine.answers = JSONResponse({"error": error}, status)
        gateway.front.sees(gateway.first, gateway.second)
        async with gateway.front.post(max_tokens=MOST) as answer:
            assert answer.status == (400 if status == 404 else status)
        await until(lambda: bool(gateway.spending.settled), 60)
        assert gateway.spending.settled[-1][1] == 0


async def test_a_request_that_no_engine_received_is_charged_nothing() -> None:
    async with one_gateway() as gateway:
        gateway.front.sees(gateway.first, gateway.second)
        await gateway.first.server.drain()
        await gateway.second.server.drain()
        async with gateway.front.post(max_tokens=MOST) as answer:
            assert answer.status == 503
        await until(lambda: bool(gateway.spending.settled), 60)
        assert gateway.spending.settled[-1][1] == 0


async def test_a_padded_input_is_placed_and_reserved_with_its_length_in_the_engine(
    redis_url: str,
) -> None:
    engine = FakeEngine()
    engine.answers = JSONResponse({"data": []})
    async with limited(redis_url, engine, {"limits": {"tokens_per_minute": 10**6}}) as front:
        fields: dict[str, Any] = {"query": "hello", "documents": ["a"] * 5, "padding": "max_length"}
        async with front.post("/v2/rerank", **fields) as answer:
            assert answer.status == 200
        told = await front.explanation_of(answer.headers)
        assert told["budget"]["tokens"] == 5 * LENGTH
        assert told["prompt_tokens"]["counted"] == 5 * LENGTH
