"""A Python that has imported modules, and forks for each program of a client.

    python -m tests.warm_python.server SOCKET MODULES...

An import of vLLM takes up to ten seconds of CPU, and an engine takes two: its own and its core's.
This process imports once, starts no thread and computes nothing, so its forks are as clean as new
processes. A program that starts an engine finds its core's process forked already
(`keep_core`). A fork is killed with its children when its client ends.
The server writes a line once it listens, and ends with its stdin.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import runpy
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

import setproctitle


@dataclass(frozen=True)
class Job:
    how: str  # -m: `program` is a module's name; -c: it is code
    program: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]


class Server:
    """Forks for its clients, and kills the forks whose client has gone."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # process id by pidfd

    def next_job(self) -> Job | None:
        """Return a job in each fork, and None in this process once its stdin ends."""
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    self._kill_all()
                    return None
                if key.fileobj is self._listener:
                    if (job := self._accept()) is not None:
                        return job
                elif key.fd in self._forks:
                    self._ended(key.fd)
                elif key.data is not None:  # a client has gone
                    self._selector.unregister(key.fileobj)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(key.data, signal.SIGKILL)

    def _accept(self) -> Job | None:
        client, _ = self._listener.accept()
        _, streams, *_ = socket.recv_fds(client, 1, 3)
        line = client.makefile("rb").readline()
        if pid := os.fork():
            for stream in streams:
                os.close(stream)
            pidfd = os.pidfd_open(pid)
            self._forks[pidfd] = pid, client
            self._selector.register(pidfd, selectors.EVENT_READ)
            self._selector.register(client, selectors.EVENT_READ, pid)
            return None
        os.setsid()
        self._selector.close()
        self._listener.close()
        client.close()
        for pidfd, (_, other) in self._forks.items():
            os.close(pidfd)
            other.close()
        return Job(**json.loads(line), streams=streams)

    def _ended(self, pidfd: int) -> None:
        pid, client = self._forks.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        with contextlib.suppress(KeyError):
            self._selector.unregister(client)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            client.sendall(b"%d\n" % abs(os.waitstatus_to_exitcode(status)))
        client.close()

    def _kill_all(self) -> None:
        for pid, _ in self._forks.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def become(job: Job) -> None:
    """Be what `python -m` would be."""
    for number, stream in enumerate(job.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(job.environment)
    gc.enable()
    if job.how == "-m" and job.environment.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
        keep_core()
    sys.argv = [job.how, *job.arguments]
    if job.how == "-c":
        exec(job.program, {"__name__": "__main__"})
        return
    sys.modules.pop(job.program, None)
    runpy.run_module(job.program, run_name="__main__", alter_sys=True)


def keep_core() -> None:
    """Fork the process of this process's engine, before this one has threads."""
    from deployments.engine.vllm.core_process import SpawnContext

    fork, spawned = multiprocessing.get_context("fork"), SpawnContext.Process
    ours, theirs = fork.Pipe()
    process = fork.Process(target=_core, args=(ours, theirs), name="EngineCore")
    process.start()
    theirs.close()
    # multiprocessing waits at exit for its child processes, and this one waits for its parent
    Finalize(None, ours.close, exitpriority=10)

    def kept(context: Any, *, target: Any, name: str, kwargs: Any) -> ForkedCore:
        setattr(SpawnContext, "Process", spawned)  # noqa: B010  # this was for one engine
        return ForkedCore(process, ours, target, kwargs)

    setattr(SpawnContext, "Process", kept)  # noqa: B010


class ForkedCore:
    """A process that has imported vLLM, in place of the one that vLLM starts."""

    def __init__(self, process: Any, task: Connection, target: Any, kwargs: Any) -> None:
        self._process = process
        self._task = task
        self._call = target, kwargs

    def start(self) -> None:
        self._task.send((dict(os.environ), sys.path))
        self._task.send_bytes(ForkingPickler.dumps(self._call))
        self._task.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


def _core(ours: Connection, task: Connection) -> None:
    ours.close()
    os.dup2(2, 1)  # vLLM prints
    with contextlib.suppress(EOFError):  # the program has started no engine
        environment, sys.path[:] = task.recv()
        os.environ.clear()
        os.environ.update(environment)
        target, kwargs = pickle.loads(task.recv_bytes())
        task.close()
        target(**kwargs)


def main(path: str, *modules: str) -> None:
    server = Server(path)
    print("listening", flush=True)
    os.dup2(2, 1)  # vLLM prints
    setproctitle.getproctitle()  # which looks for the title's memory next to the environment's
    gc.disable()
    for module in modules:
        import_module(module)
    gc.freeze()
    if (job := server.next_job()) is not None:
        become(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
