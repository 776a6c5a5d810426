"""Which requests have a turn, and which wait."""

from __future__ import annotations

import asyncio

from deployments.engine.vllm.grammars.grammar_turns import GrammarTurns


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_tenant_has_one_turn_at_a_time() -> None:
    turns = GrammarTurns(at_once=4)
    await turns.begin("a")
    second = asyncio.ensure_future(turns.begin("a"))
    await settle()
    assert not second.done()
    turns.end("a")
    await second


async def test_another_tenant_gets_a_free_turn_at_once() -> None:
    turns = GrammarTurns(at_once=2)
    await turns.begin("a")
    waiting = [asyncio.ensure_future(turns.begin("a")) for _ in range(5)]
    await settle()
    await turns.begin("b")
    assert not any(one.done() for one in waiting)
    for one in waiting:
        one.cancel()


async def test_tenants_that_wait_take_turns_however_many_requests_each_has() -> None:
    turns, order = GrammarTurns(at_once=1), list[str]()

    async def one(tenant: str) -> None:
        await turns.begin(tenant)
        order.append(tenant)
        await settle()
        turns.end(tenant)

    await asyncio.gather(*(one(tenant) for tenant in "aaaabc"))
    assert order[:4] == ["a", "b", "c", "a"]
    assert sorted(order) == list("aaaabc")


async def test_a_cancelled_request_takes_no_turn() -> None:
    turns = GrammarTurns(at_once=1)
    await turns.begin("a")
    gone = asyncio.ensure_future(turns.begin("b"))
    await settle()
    gone.cancel()
    await settle()
    turns.end("a")
    await asyncio.wait_for(turns.begin("c"), 60)


async def test_a_request_cancelled_as_its_turn_begins_releases_the_turn() -> None:
    turns = GrammarTurns(at_once=1)
    await turns.begin("a")
    gone = asyncio.ensure_future(turns.begin("b"))
    await settle()
    turns.end("a")
    gone.cancel()
    await settle()
    await asyncio.wait_for(turns.begin("c"), 60)


async def test_the_reported_wait_is_that_of_the_oldest_request_waiting_for_other_tenants() -> None:
    clock = Clock()
    turns = GrammarTurns(at_once=1, clock=clock)
    assert turns.longest_wait_s == 0.0
    await turns.begin("a")
    own = asyncio.ensure_future(turns.begin("a"))
    await settle()
    clock.now = 5.0
    assert turns.longest_wait_s == 0.0
    other = asyncio.ensure_future(turns.begin("b"))
    await settle()
    clock.now = 8.0
    assert turns.longest_wait_s == 3.0
    own.cancel()
    other.cancel()
