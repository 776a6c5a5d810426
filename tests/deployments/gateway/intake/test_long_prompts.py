"""Threads that read long prompts leave the interpreter to the event loop; tenants take turns."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from deployments.gateway.intake.long_prompts import MOST_WAITING, LongPrompts
from deployments.gateway.pool import prompt_reader
from router.choice.policies import PlacementRequest
from tests.fakes.engine import FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, Front, gateway_before
from tests.waiting import cancelled, until

PATIENT_S = 30.0
TENANT = "tenant"
LONG = "word " * 2000


async def test_one_thread_at_a_time_computes_in_python() -> None:
    threads, at_once, most = LongPrompts(4), [0], [0]

    def read() -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.005)  # lets go of the interpreter, so that others could run
        at_once[0] -= 1

    await asyncio.gather(*(threads.run(TENANT, read) for _ in range(8)))
    assert most == [1]


async def test_work_without_the_interpreter_runs_in_parallel() -> None:
    threads, together = LongPrompts(2), threading.Barrier(3)

    def read() -> str:
        with threads.elsewhere():
            together.wait(PATIENT_S)
        return "read"

    reading = asyncio.gather(*(threads.run(TENANT, read) for _ in range(2)))
    await asyncio.to_thread(together.wait, PATIENT_S)
    assert await reading == ["read", "read"]


async def test_a_thread_that_fails_gives_up_its_turn() -> None:
    threads = LongPrompts(2)

    def fails() -> None:
        with threads.elsewhere():
            raise ValueError("no tokenizer")

    for _ in range(2):
        with pytest.raises(ValueError, match="no tokenizer"):
            await threads.run(TENANT, fails)
    assert await threads.run(TENANT, lambda: "read") == "read"


class Reading:
    """One thread, which reads nothing until `go_on` is set; `order`: who was read."""

    def __init__(self) -> None:
        self.threads = LongPrompts(1)
        self.go_on = threading.Event()
        self.order: list[str] = []

    def begin(self, tenant: str) -> asyncio.Task[str | None]:
        def read() -> str:
            self.order.append(tenant)
            assert self.go_on.wait(PATIENT_S)
            self.order.append(f"end of {tenant}")
            return tenant

        return asyncio.create_task(self.threads.run(tenant, read))


async def test_tenants_take_turns_at_having_long_prompts_read() -> None:
    reading = Reading()
    many = [reading.begin("many") for _ in range(20)]
    await until(lambda: reading.order == ["many"])
    few = [reading.begin("few") for _ in range(2)]
    await asyncio.sleep(0)
    reading.go_on.set()
    assert await asyncio.gather(*many, *few) == ["many"] * 20 + ["few"] * 2
    assert reading.order[::2][:5] == ["many", "few", "many", "few", "many"]


async def test_a_prompt_that_is_given_up_before_its_turn_is_not_read() -> None:
    reading = Reading()
    first, second = reading.begin("a"), reading.begin("b")
    await until(lambda: reading.order == ["a"])
    await cancelled(second)
    reading.go_on.set()
    assert await first == "a"
    assert await reading.begin("c") == "c"
    assert reading.order[::2] == ["a", "c"]


async def test_a_prompt_that_is_given_up_in_its_turn_keeps_its_thread_to_the_end() -> None:
    """Otherwise a tenant with short deadlines would have more threads than its turns."""
    reading = Reading()
    first = reading.begin("a")
    await until(lambda: reading.order == ["a"])
    await cancelled(first)
    more = [reading.begin("a"), reading.begin("b")]
    await asyncio.sleep(0.05)
    await cancelled(more[0])
    reading.go_on.set()
    assert await more[1] == "b"
    assert reading.order == ["a", "end of a", "b", "end of b"]


async def test_one_tenants_waiting_prompts_leave_another_tenants_to_be_read() -> None:
    reading = Reading()
    first = reading.begin("many")
    await until(lambda: reading.order == ["many"])
    waiting = [reading.begin("many") for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    assert await reading.begin("many") is None
    few = reading.begin("few")
    await asyncio.sleep(0)
    reading.go_on.set()
    assert await few == "few"
    assert await asyncio.gather(first, *waiting) == ["many"] * (1 + MOST_WAITING)


async def test_a_gateway_reads_the_long_prompts_of_tenants_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, order = threading.Event(), list[str]()

    def tokenize(request: Any, *_: object) -> tuple[PlacementRequest, bool]:
        order.append(request.tenant)
        assert go_on.wait(PATIENT_S)
        return PlacementRequest(2000), True

    async def status(front: Front, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        async with front.post("/v1/completions", headers, prompt=LONG, max_tokens=1) as answer:
            return int(answer.status)

    monkeypatch.setattr("tests.fakes.completions.LONGEST_PROMPT", len(LONG))
    monkeypatch.setattr(prompt_reader, "LONG_PROMPTS", LongPrompts(1))
    async with gateway_before(FakeEngine()) as front:
        monkeypatch.setattr(front.pool.reader, "_tokenize", tokenize)
        asking = [asyncio.create_task(status(front, KEY)) for _ in range(4)]
        await until(lambda: bool(order))
        asking.append(asyncio.create_task(status(front, OTHER_KEY)))
        under_way = front.gateway.parts.bodies
        await until(lambda: under_way.held_bytes >= 5 * len(LONG))
        await asyncio.sleep(0.05)
        go_on.set()
        assert await asyncio.gather(*asking) == [200] * 5
    assert [tenant == order[0] for tenant in order] == [True, False, True, True, True]


def test_threads_without_a_turn_do_not_occupy_one() -> None:
    threads = LongPrompts(1)
    with threads.elsewhere(), threads.elsewhere():
        pass
    taken = threading.Event()

    def take() -> None:
        with threads.a_turn():
            taken.set()

    threading.Thread(target=take, daemon=True).start()
    assert taken.wait(60)
