"""The processes of one run of a fleet, and their end.

Every process starts with ANTEFIX_RUN_ID in its environment, and its children inherit it. So Ray's
and vLLM's children have it too, even after their parent died. SPT_NOENV keeps Ray and vLLM, which
overwrite their arguments with a title, from overwriting their environment as well. Redis overwrites
it regardless, and is identified by its working directory, which is named after the run. No other
process is ever signalled: each pid is checked again right before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from common.errors import Problem

RUN_ID = "ANTEFIX_RUN_ID"
RAYLET_SECONDS = 8.0
TERM_SECONDS = 5.0
KILL_SECONDS = 20.0


def marker(run_id: str) -> dict[str, str]:
    """Return the environment of a process that belongs to this run."""
    return {RUN_ID: run_id, "SPT_NOENV": "1"}


def processes(run_id: str) -> list[psutil.Process]:
    """Return the living processes of this run, without zombies and this process."""
    own = psutil.Process().pid
    return [p for p in psutil.process_iter() if p.pid != own and _belongs(p, run_id)]


def core_is_alive(run_id: str) -> bool:
    """Return whether Ray's two indispensable processes run. Without either, the fleet cannot
    recover."""
    names = {_name(process) for process in processes(run_id)}
    return any(n.startswith("raylet") for n in names) and any("gcs_server" in n for n in names)


def stop(run_id: str) -> None:
    """Return once no process is left. Raises Problem if one survives SIGKILL.

    Ray's node manager ends first and stops its workers in order. Redis ends last, because they
    report to it.
    """
    everything = processes(run_id)
    raylets = [p for p in everything if _name(p).startswith("raylet")]
    _terminate(raylets, RAYLET_SECONDS)
    redis = [p for p in everything if _name(p).startswith("redis-server")]
    redis_pids = {p.pid for p in redis}
    _terminate([p for p in processes(run_id) if p.pid not in redis_pids], TERM_SECONDS)
    _terminate(redis, TERM_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    # Repeated, because a process may have started another before it was killed.
    while left := processes(run_id):
        if time.monotonic() > deadline:
            shown = ", ".join(f"{p.pid} ({_name(p)})" for p in left)
            raise Problem(
                f"cannot stop these processes of the fleet: {shown}",
                "they may be stuck in uninterruptible I/O; try again, or reboot",
            )
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.5)


def _terminate(targets: Sequence[psutil.Process], seconds: float) -> None:
    for process in targets:
        with contextlib.suppress(psutil.Error):
            # psutil raises NoSuchProcess if the pid belongs to another process now
            process.terminate()
    psutil.wait_procs(targets, timeout=seconds)


def _belongs(process: psutil.Process, run_id: str) -> bool:
    try:
        if process.environ().get(RUN_ID) == run_id:
            return True
        is_redis = process.name().startswith("redis-server")
        return is_redis and Path(process.cwd()).name == run_id
    except (psutil.Error, OSError):
        return False


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""
