"""Real processes, as Linux reports them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deployments.engine.watchdog import processes
from deployments.engine.watchdog.processes import Thread, were_quiet
from tests.waiting import until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child, which both sleep."""
    inner = "import time; time.sleep(600)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer], start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def test_a_sleeping_process_is_quiet_and_a_stopped_one_is_reported(
    sleeper: subprocess.Popen[bytes],
) -> None:
    await until(lambda: len(processes.with_children(sleeper.pid)) == 2)
    both = processes.with_children(sleeper.pid)
    before = processes.threads(both)
    seen = {pid for pid, _ in before}
    assert seen == set(both) and both[0] == sleeper.pid

    def quiet() -> bool:
        nonlocal before
        last, before = before, processes.threads(both)
        return were_quiet(last, before, 0.005)

    await until(quiet)
    os.kill(both[1], signal.SIGSTOP)
    await until(lambda: processes.state(both[1]) == "T")
    assert "T" in {thread.state for thread in processes.threads(both).values()}
    assert any(f"{both[1]}/" in line for line in processes.told_of(both))


async def test_a_process_that_computes_is_not_quiet() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
    try:
        before = processes.threads([process.pid])
        await until(lambda: processes.threads([process.pid]) != before)
        after = processes.threads([process.pid])
        assert not were_quiet(before, after, 1.0)
    finally:
        process.kill()
        await process.wait()
    assert processes.state(process.pid) == "X"


def test_a_process_that_waits_for_a_core_or_a_disk_is_not_quiet() -> None:
    asleep = {(1, 1): Thread("S", 5.0), (1, 2): Thread("S", 1.0)}
    assert were_quiet(asleep, asleep, 0.25)
    for state in "RDt":
        assert not were_quiet(asleep, {**asleep, (1, 2): Thread(state, 1.0)}, 0.25)
    assert not were_quiet(asleep, {**asleep, (1, 2): Thread("S", 1.1)}, 0.25)
    assert not were_quiet(asleep, {**asleep, (1, 3): Thread("S", 0.0)}, 0.25)
