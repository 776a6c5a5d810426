"""Threads that read long prompts leave the interpreter to the event loop."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from deployments.gateway.long_prompts import LongPrompts

PATIENT_S = 30.0


async def test_one_thread_at_a_time_computes_in_python() -> None:
    threads, at_once, most = LongPrompts(4), [0], [0]

    def read() -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.005)  # lets go of the interpreter, so that others would come
        at_once[0] -= 1

    await asyncio.gather(*(threads.run(read) for _ in range(8)))
    assert most == [1]


async def test_what_does_without_the_interpreter_goes_on_beside() -> None:
    threads, together = LongPrompts(2), threading.Barrier(3)

    def read() -> str:
        with threads.elsewhere():
            together.wait(PATIENT_S)
        return "read"

    reading = asyncio.gather(*(threads.run(read) for _ in range(2)))
    await asyncio.to_thread(together.wait, PATIENT_S)
    assert await reading == ["read", "read"]


async def test_a_thread_that_fails_gives_up_its_turn() -> None:
    threads = LongPrompts(2)

    def fails() -> None:
        with threads.elsewhere():
            raise ValueError("no tokenizer")

    for _ in range(2):
        with pytest.raises(ValueError, match="no tokenizer"):
            await threads.run(fails)
    assert await threads.run(lambda: "read") == "read"


def test_who_has_no_turn_takes_none() -> None:
    threads = LongPrompts(1)
    with threads.elsewhere(), threads.elsewhere():
        pass
    assert not threads._turn.locked()
