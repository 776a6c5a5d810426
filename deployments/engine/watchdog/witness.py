"""A watchdog process for each engine, which detects hangs.

    python -m deployments.engine.watchdog.witness

It reads the heartbeat of the engine, and the state of its threads from Linux. It reports a suspect
to the replica, which leaves routing. It logs the stacks of a hung engine. If the replica requests
it, it then stops them. First the replica ends, by itself if it still can, so that its connections
break and gateways resume elsewhere; then the engine and its workers. If the replica ends in any
other way, the rest of its engine is stopped too. Gateways learn through Redis whether the replica
ran out of memory (`death_report`), and do not try its requests on another replica then.

It needs only Python and a client of Redis, which it imports once the engine runs. It has its own
session, and is started before vLLM is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deployments.engine.vllm.watch.heartbeat import (
    STACKS_SIGNAL,
    CoreBeat,
    HeartbeatFile,
    LoopPhase,
    ReplicaBeat,
)
from deployments.engine.watchdog import memory_use as memory
from deployments.engine.watchdog import processes
from deployments.engine.watchdog.death_report import DeathReport
from deployments.engine.watchdog.hang import PERIOD_S, EngineHealth, Judge, Look
from deployments.engine.watchdog.memory_use import MemoryWatch

# Pause before a failed witness is started again; one that ended with CANNOT is not started again.
RESTART_S, CANNOT = 5.0, 4
# Time for a running replica to leave the board, and for an engine to write its stacks.
LEAVES_IN_S = 2.0
STACKS_S = 0.5
# Time for an engine whose replica has ended to end without help.
ORPHAN_S = 5.0
# SIGKILL waits for a driver or a disk.
DIES_IN_S = 5.0
# Pause between two reports of low memory.
WARN_AGAIN_S = 5.0


class Witness:
    """The replica's side of the watchdog. Raises OSError if there is no room for its file.

    `ends_hung`: a hung engine is stopped; a change applies from the next beat on. `report`: how
    gateways learn why the replica ended; None: they do not.
    """

    def __init__(self, ends_hung: bool = False, report: DeathReport | None = None) -> None:
        self.ends_hung = ends_hung
        self._report = report
        descriptor, name = tempfile.mkstemp(prefix="antefix-heartbeat-")
        try:
            HeartbeatFile.lay_out(descriptor)
        finally:
            os.close(descriptor)
        self.path = Path(name)
        self._file = HeartbeatFile(self.path)
        self._beats = self._probes = self._open_probe = 0
        self._started_at = 0.0
        # a replica that stops before its first beat is judged by this as well
        self._say()
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self._started_at = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self.path), str(os.getpid())],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=2,
            start_new_session=True,
        )
        assert process.stdin is not None
        # not as an argument, which others can read: the URL of Redis may have a password
        with contextlib.suppress(BrokenPipeError), process.stdin as told:
            told.write(self._report.to_json().encode() if self._report else b"")
        return process

    @property
    def pid(self) -> int:
        return self._process.pid

    def beat(self) -> None:
        """Report that the event loop runs; restart a watchdog that does not."""
        self._beats += 1
        self._say()
        is_due = time.monotonic() - self._started_at >= RESTART_S
        if is_due and self._process.poll() not in (None, CANNOT):
            self._process = self._started()

    @contextlib.contextmanager
    def probing(self) -> Iterator[None]:
        """Mark a block in which the engine must answer a call."""
        self._probes += 1
        self._open_probe = self._probes
        self._say()
        try:
            yield
        finally:
            self._open_probe = 0
            self._say()

    @property
    def verdict(self) -> tuple[EngineHealth, str]:
        verdict, why = self._file.verdict
        return EngineHealth(verdict), why

    def stop(self) -> None:
        """Stop the watchdog, before the engine ends."""
        self._process.kill()
        self._process.wait()
        self.path.unlink(missing_ok=True)

    def _say(self) -> None:
        self._file.replica = ReplicaBeat(self._beats, self._open_probe, self.ends_hung)


class _EngineWatch:
    """The watchdog's own side."""

    def __init__(self, path: Path, replica: int, report: DeathReport | None = None) -> None:
        self._file = HeartbeatFile(path)
        self._path = path
        self._report = report
        self._memory = MemoryWatch()
        self._warned_at = -math.inf
        self._replica = replica
        self._replica_fd = _opened(replica, path)
        self._core: int | None = None
        self._core_fd: int | None = None
        # children of the engine when its loop started, which include its workers
        self._at_first: list[int] = []
        self._judge = Judge()
        self._beats = 0
        self._seen: tuple[float, processes.Threads] | None = None

    def run(self) -> None:
        health = EngineHealth.HEALTHY
        while not _wait_for(self._replica_fd, PERIOD_S):
            self._watch_memory()
            found = self._judge.look(self._look())
            if found is EngineHealth.HUNG and self._file.replica.ends_hung:
                self._end()
                break
            if found is not health:
                health = found
                why = self._judge.why if health else ""
                if health is EngineHealth.HUNG:
                    print(f"engine hung; not stopping it: {why}", flush=True)
                    self._print_stacks(self._engine())
                else:
                    print(f"the engine is {health.name.lower()}: {why}", flush=True)
                self._file.verdict = (health, why)
        else:
            self._report_death()
            self._end_orphan()
        self._path.unlink(missing_ok=True)

    def _watch_memory(self) -> None:
        """Observe the memory. Report early that it is low: the kernel may kill the watchdog too."""
        self._memory.take(memory.look())
        now = time.monotonic()
        if self._report and self._memory.is_low and now - self._warned_at > WARN_AGAIN_S:
            self._warned_at = now
            self._report.write(ran_out=True)

    def _report_death(self) -> None:
        self._memory.take(memory.look())
        if self._report:
            ran_out = self._file.out_of_memory or self._memory.ran_out
            self._report.write(ran_out)
            if ran_out:
                print("the replica ran out of memory", flush=True)

    def _look(self) -> Look:
        core, replica, now = self._file.core, self._file.replica, time.monotonic()
        self._know(core)
        waits = core.phase is LoopPhase.STEP or replica.probe > 0
        stalls = waits and core.beats == self._beats
        self._beats = core.beats
        # also a worker, for which nothing waits while the engine is idle
        stopped = any(processes.state(pid) == "T" for pid in (self._replica, *self._at_first))
        quiet = False
        if stalls and self._core is not None:
            quiet = self._are_quiet(self._core, now)
        else:
            self._seen = None
        return Look(
            now,
            core.beats,
            core.phase,
            core.bound_s,
            replica.beats,
            replica.probe,
            quiet,
            stopped,
        )

    def _know(self, core: CoreBeat) -> None:
        """Record the engine's process, once its loop starts."""
        if self._core is not None or core.phase is LoopPhase.UNWATCHED:
            return
        self._core_fd = _opened(core.pid, self._path)
        self._core = core.pid if self._core_fd is not None else None
        if self._report:  # at its end, there is no time to import it
            importlib.import_module("router.redis.redis_client")
        self._at_first = self._engine()

    def _are_quiet(self, core: int, now: float) -> bool:
        """Return whether the engine's threads were quiet since the last look."""
        last = self._seen
        try:
            threads = processes.threads(processes.with_children(core))
        except OSError:  # without data, the time does not count
            self._seen = None
            return False
        self._seen = now, threads
        return last is not None and processes.were_quiet(last[1], threads, now - last[0])

    def _end(self) -> None:
        ours = self._engine()
        print(f"engine hung; stopping it: {self._judge.why}", flush=True)
        self._print_stacks(ours)
        self._file.verdict = (EngineHealth.HUNG, self._judge.why)
        if processes.state(self._replica) != "T":
            _wait_for(self._replica_fd, LEAVES_IN_S)
        _send(self._replica_fd, signal.SIGKILL)
        self._kill(ours)

    def _print_stacks(self, ours: list[int]) -> None:
        """Print the engine's stacks to its own log, and the place in the kernel of each thread of
        these processes."""
        # a stopped process can neither write its stacks nor end
        if processes.state(self._core or 0) != "T":
            _send(self._core_fd, STACKS_SIGNAL)
            time.sleep(STACKS_S)
        for line in processes.told_of(ours):
            print(line, flush=True)

    def _end_orphan(self) -> None:
        self._know(self._file.core)
        if _wait_for(self._core_fd, ORPHAN_S):
            return
        print("the replica has exited but its engine has not: stopping the engine", flush=True)
        self._kill(self._engine())

    def _engine(self) -> list[int]:
        if self._core is None:
            return []
        try:
            return processes.with_children(self._core)
        except OSError:
            return [self._core]

    def _kill(self, pids: list[int]) -> None:
        """Kill the engine and, in `pids`, its workers, which end with it if they can."""
        # the engine is alive, so its children's pids are still theirs
        for pid in pids if not _wait_for(self._core_fd, 0.0) else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not _wait_for(self._core_fd, DIES_IN_S):
            print(f"process {self._core} does not exit: a driver or a disk blocks it", flush=True)


def _opened(pid: int, path: Path) -> int | None:
    """Return a pidfd of the process, if it is the one that has mapped the file."""
    with contextlib.suppress(ProcessLookupError):
        opened = os.pidfd_open(pid)
        if processes.maps(pid, path):
            return opened
        os.close(opened)
    return None


def _send(process: int | None, what: signal.Signals) -> None:
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, what)


def _wait_for(process: int | None, within_s: float) -> bool:
    """Return whether the process of this pidfd has ended by then; None: it has."""
    if process is None:
        return True
    ended = select.poll()
    ended.register(process, select.POLLIN)
    return bool(ended.poll(within_s * 1000))


if __name__ == "__main__":
    try:
        told = sys.stdin.read()
        report = DeathReport.from_json(told) if told else None
        watch = _EngineWatch(Path(sys.argv[1]), int(sys.argv[2]), report)
    except OSError as error:  # a kernel or a sandbox without pidfds
        print(f"hangs are not detected here: the watchdog cannot run, {error}", flush=True)
        sys.exit(CANNOT)
    watch.run()
