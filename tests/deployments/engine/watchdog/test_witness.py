"""A real witness next to processes that do nothing: what it ends, and what it leaves alone."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from deployments.engine.vllm.watch.heartbeat import HeartbeatFile
from deployments.engine.watchdog import processes
from deployments.engine.watchdog.death_report import DeathReport
from deployments.engine.watchdog.hang import STOPPED
from deployments.engine.watchdog.witness import ORPHAN_S, Witness
from deployments.fleet.settings.hung_engine import HungEngine
from router.board.replica_death import KEPT_S, OTHER_CAUSE, OUT_OF_MEMORY, death_key
from router.redis.redis_client import connect
from router.redis.signature import Signer, opened_bytes
from tests.fakes.watched import REPORT
from tests.waiting import until

LEFT_BY_ITSELF = 3


@dataclass
class Watched:
    replica: asyncio.subprocess.Process
    core: int
    worker: int
    witness: int

    async def said(self) -> str:
        assert self.replica.stdout is not None
        async with asyncio.timeout(60.0):
            return (await self.replica.stdout.readline()).decode()

    @property
    def core_is_gone(self) -> bool:
        return processes.state(self.core) in "XZ"

    @property
    def looks(self) -> int:
        """How often the witness went to sleep, which it does after each look."""
        status = Path(f"/proc/{self.witness}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    @property
    def witness_is_gone(self) -> bool:
        return processes.state(self.witness) in "XZ"


@asynccontextmanager
async def watched(
    does: str, folder: Path, hung_engine: HungEngine = "restart", report: DeathReport | None = None
) -> AsyncIterator[Watched]:
    replica = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.watched", does, hung_engine),
        stdout=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "TMPDIR": str(folder),
            REPORT: report.to_json() if report else "",
        },
    )
    assert replica.stdout is not None
    core, worker, witness = map(int, (await replica.stdout.readline()).split())
    try:
        yield Watched(replica, core, worker, witness)
    finally:
        if replica.returncode is None:
            replica.kill()
        await replica.wait()
        await until(lambda: not list(folder.glob("antefix-heartbeat-*")))
        await until(lambda: all(processes.state(pid) in "XZ" for pid in (core, worker)))


@pytest.mark.parametrize("which", ["core", "worker"])
async def test_a_stopped_engine_is_ended_after_its_replica_has_left(
    tmp_path: Path, which: str
) -> None:
    """A worker, too, though nothing waits for it while the engine is idle."""
    async with watched("idle", tmp_path) as one:
        os.kill(getattr(one, which), signal.SIGSTOP)
        assert "stopped" in await one.said()
        assert await one.replica.wait() == LEFT_BY_ITSELF
        await until(lambda: one.core_is_gone)


async def test_an_engine_stuck_in_a_step_is_ended(tmp_path: Path) -> None:
    async with watched("stuck", tmp_path) as one:
        assert "step" in await one.said()
        assert await one.replica.wait() == LEFT_BY_ITSELF
        await until(lambda: one.core_is_gone)


async def test_a_hung_engine_is_not_ended_if_its_pool_only_suspects(
    tmp_path: Path,
) -> None:
    async with watched("stuck", tmp_path, "suspect") as one:
        assert "step" in await one.said()
        os.kill(one.core, signal.SIGUSR1)
        assert await one.said() == "healthy\n"
        assert one.replica.returncode is None and not one.core_is_gone


async def test_a_stopped_replica_is_ended_with_its_engine(tmp_path: Path) -> None:
    async with watched("idle", tmp_path) as one:
        one.replica.send_signal(signal.SIGSTOP)
        assert await one.replica.wait() == -signal.SIGKILL
        await until(lambda: one.core_is_gone)


def test_the_heartbeat_file_states_initially_whether_a_hung_engine_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that stops this early must not leave its engine hung for ever."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    witness = Witness(ends_hung=True)
    try:
        assert HeartbeatFile(witness.path).replica.ends_hung
    finally:
        witness.stop()


async def test_an_engine_whose_replica_was_killed_is_ended_too(tmp_path: Path) -> None:
    async with watched("idle", tmp_path) as one:
        killed_at = time.monotonic()
        one.replica.kill()
        await one.replica.wait()
        await until(lambda: one.core_is_gone, 60.0 + ORPHAN_S)
        assert time.monotonic() - killed_at >= ORPHAN_S


@pytest.mark.parametrize(("does", "cause"), [("idle", OTHER_CAUSE), ("starves", OUT_OF_MEMORY)])
async def test_gateways_learn_why_a_replica_was_killed(
    tmp_path: Path, redis_url: str, does: str, cause: bytes
) -> None:
    """The machine of the tests has memory left, so only the engine's own report is of none."""
    report = DeathReport.of(redis_url, "fleet@here", "secret", "r0")
    key, signer = death_key("fleet", "r0"), Signer("secret")
    async with (
        connect(redis_url, decode=False) as redis,
        watched(does, tmp_path, report=report) as one,
    ):
        assert await redis.get(key) is None
        one.replica.kill()
        await one.replica.wait()
        async with asyncio.timeout(60):
            while (written := await redis.get(key)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert opened_bytes(signer, key, cast(bytes, written)) == cause
        assert 0 < await redis.ttl(key) <= KEPT_S


def test_a_report_shows_no_password() -> None:
    report = DeathReport.of("redis://:password@here", "fleet", "secret", "r0")
    assert "password" not in repr(report)


async def test_a_killed_witness_is_replaced(tmp_path: Path) -> None:
    async with watched("idle", tmp_path) as one:
        os.kill(one.witness, signal.SIGKILL)
        await until(lambda: one.witness_is_gone)
        os.kill(one.core, signal.SIGSTOP)
        assert "stopped" in await one.said()


@pytest.mark.parametrize("which", ["all", "witness"])
async def test_processes_frozen_together_with_their_witness_continue_with_it(
    tmp_path: Path, which: str
) -> None:
    """As a container or a machine is: no process was there to see it."""
    async with watched("idle", tmp_path) as one:
        frozen = [one.witness] if which == "witness" else [one.core, one.replica.pid, one.witness]
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(STOPPED.hung_s + 1.0)
        looks = one.looks
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        # it would count the time at one of its first looks, however late a busy machine lets it
        await until(lambda: one.looks >= looks + 5)
        assert one.replica.returncode is None and not one.core_is_gone
