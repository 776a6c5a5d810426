"""Tenants take turns, and a wait that is given up leaves nothing behind."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.intake.tenant_turns import TenantTurns
from tests.waiting import cancelled, until


class Work:
    """Turns that last until `end`; `begun` has the tenants in the order of their turns."""

    def __init__(self, places: int = 1) -> None:
        self.places = places
        self.turns = TenantTurns(places)
        self.begun: list[str] = []
        self.running = 0
        self._ends = asyncio.Semaphore(0)

    def end(self) -> None:
        self._ends.release()

    def asks(self, tenant: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._ask(tenant))

    async def _ask(self, tenant: str) -> None:
        async with self.turns.of(tenant):
            self.running += 1
            assert self.running <= self.places
            self.begun.append(tenant)
            try:
                await self._ends.acquire()
            finally:
                self.running -= 1


async def test_a_tenant_with_many_waiting_has_every_other_turn() -> None:
    work = Work()
    many = [work.asks("many") for _ in range(20)]
    await until(lambda: len(work.turns) == 19)
    few = [work.asks("few") for _ in range(2)]
    await until(lambda: len(work.turns) == 21)
    for _ in range(22):
        work.end()
    await asyncio.gather(*many, *few)
    assert work.begun[:5] == ["many", "few", "many", "few", "many"]
    assert len(work.begun) == 22


async def test_a_wait_that_is_cancelled_takes_no_turn() -> None:
    work = Work()
    first, second, third = work.asks("a"), work.asks("b"), work.asks("c")
    await until(lambda: len(work.turns) == 2)
    await cancelled(second)
    work.end()
    await first
    await until(lambda: work.begun == ["a", "c"])
    work.end()
    await third


async def test_as_many_requests_have_a_turn_as_there_are_places() -> None:
    work = Work(places=3)
    asked = [work.asks("a") for _ in range(5)]
    await until(lambda: work.running == 3)
    assert (len(work.turns), work.turns.waiting_of("a"), work.turns.waiting_of("b")) == (2, 2, 0)
    for _ in asked:
        work.end()
    await asyncio.gather(*asked)
    again = [work.asks("a") for _ in range(3)]
    await until(lambda: work.running == 3)
    for _ in again:
        work.end()
    await asyncio.gather(*again)


@given(
    places=st.integers(1, 3),
    asked=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12),
)
def test_after_any_cancellation_the_others_have_their_turns(
    places: int, asked: list[tuple[str, bool]]
) -> None:
    async def scenario() -> None:
        work = Work(places)
        tasks = [(work.asks(tenant), leaves) for tenant, leaves in asked]
        await asyncio.sleep(0)
        work.end()  # the next turn begins at the moment of the cancellations
        await asyncio.sleep(0)
        for task, leaves in tasks:
            if leaves:
                task.cancel()
        for _ in tasks:
            work.end()
        done = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        for (_, leaves), result in zip(tasks, done, strict=True):
            assert result is None or (leaves and isinstance(result, asyncio.CancelledError))
        assert len(work.turns) == 0
        work.end()
        await work.asks("d")

    asyncio.run(scenario())
