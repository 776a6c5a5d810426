"""The process of vLLM's engine, which Antefix starts, on request before it is needed.

vLLM spawns its EngineCore once it has read its configuration. The new process then imports vLLM,
which takes about half of a small engine's start. Here the same spawned process gets its task over a
pipe, so that it can start, and import vLLM, earlier (`keep_one`). It is exec'd with the environment
that vLLM would have given it. If that environment changes, or anything differs from the
expectation, a process is started at that moment, or vLLM starts its own. Nothing is forked; no
weights are loaded and no device is touched before an engine needs them.

Imports are a fifth less work without the garbage collector, which finds nothing among modules and
leaves them alone from then on.
Source: `CoreEngineProcManager` in vllm/v1/engine/utils.py of vLLM 0.32.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

import psutil

from deployments.engine.vllm.grammar_trial import SOCKET
from deployments.engine.vllm.heartbeat import HEARTBEAT

logger = logging.getLogger("ray.serve")

# Variable -> value; None: not set.
Changes = Mapping[str, str | None]

# How long an engine waits for a started process that is still importing: if that takes minutes, a
# new one takes them as well. And how long for one that does nothing.
READY_S, QUIET_S, _LITTLE_S = 300.0, 3.0, 0.1
# The process computes, or waits for a core or a disk.
_AT_WORK = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
_ASKED, _READY = "are you ready", "ready"
_MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.distributed.kv_events",
    "deployments.engine.vllm.plugin",
    "deployments.engine.vllm.measured_schedulers",
)
_WORKERS = {"cpu": "vllm.v1.worker.cpu_worker", "cuda": "vllm.v1.worker.gpu_worker"}
_NAME = "EngineCore"
# An import checks whether it is set; each metric reads its value, a folder per replica.
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_SPAWN = multiprocessing.get_context("spawn")
# Taken before Ray assigns an actor to this process, if Ray's hook imports this module.
_AT_FIRST = dict(os.environ)


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Keep the garbage collector from imports, which create no garbage, and from what they create.

    vLLM collects at least four times while an engine starts. Each time takes 0.7 s over the million
    objects of vLLM's modules, and a millisecond without them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()


class CoreProcess:
    """A process that becomes an engine once it gets its task, and ends with its parent.

    `changes`: its environment is this process's with these. It imports the `modules` at once.
    """

    def __init__(
        self, changes: Changes, modules: Sequence[str] = (), name: str | None = _NAME
    ) -> None:
        self._told, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_become, args=(theirs, modules), name=name)
        with _environment(changes):
            self._environment = dict(os.environ)
            self.process.start()
        theirs.close()
        self._imports = bool(modules)
        # multiprocessing waits at exit for its child processes, and this one waits for its parent
        self._at_exit = Finalize(self, self._told.close, exitpriority=10)

    def why_not(self, name: str = _NAME) -> str:
        """Return why it cannot be the engine's process `name` of this process; empty: it can."""
        if name != self.process.name:
            return f"it is to be {name}"
        if os.fsdecode(multiprocessing.spawn.get_executable()) != sys.executable:
            return "another program must start it"
        other = _read_at_import(_changes_since(self._environment))
        if self._environment.get(_METRICS) and os.environ.get(_METRICS):
            other.pop(_METRICS, None)
        if other:
            return f"it has another environment: {', '.join(other)}"
        if self._imports and not self._is_ready():
            return "it has not imported vLLM"
        return ""

    def _is_ready(self) -> bool:
        try:
            self._told.send(_ASKED)
            return self._answers() and self._told.recv() == _READY
        except (EOFError, OSError, psutil.Error):
            return False

    def _answers(self) -> bool:
        began, spent_s, process = time.monotonic(), -1.0, psutil.Process(self.process.pid)
        while not self._told.poll(QUIET_S):
            before_s, times = spent_s, process.cpu_times()
            spent_s = times.user + times.system
            hangs = process.status() not in _AT_WORK and spent_s - before_s < _LITTLE_S
            if hangs or time.monotonic() - began > READY_S:
                return False
        return True

    def run(self, target: Callable[..., None], kwargs: Mapping[str, Any]) -> None:
        """Send the task. Raises any error that prevents sending; then the process is unusable."""
        job = ForkingPickler.dumps((target, kwargs))
        path = multiprocessing.spawn.get_preparation_data(self.process.name)["sys_path"]
        self._told.send((_changes_since(self._environment), path))
        self._told.send_bytes(job)
        self._at_exit()

    def end(self) -> None:
        self._at_exit()
        self.process.kill()
        self.process.join()


def _become(told: Connection, modules: Sequence[str]) -> None:
    """Receive the task and run it, in the new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with without_gc():
        if modules and not _import_all(modules):
            return
        try:
            if modules and told.recv() == _ASKED:
                told.send(_READY)
            changes, sys.path[:] = told.recv()
            job = told.recv_bytes()
        except (EOFError, ConnectionError):  # the parent has ended, or does not need it
            return
        told.close()
        _apply(changes)
        target, kwargs = pickle.loads(job)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    target(**kwargs)


def _import_all(modules: Sequence[str]) -> bool:
    """Import the modules. Return false if that has touched a device."""
    for name in modules:
        importlib.import_module(name)
    if platforms := sys.modules.get("vllm.platforms"):
        worker = _WORKERS.get(platforms.current_platform.device_type)
        if worker is not None:
            importlib.import_module(worker)
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


class _EngineProcess:
    """A replacement for vLLM's `multiprocessing.Process`; `start` decides which process it is."""

    def __init__(self, vllm_s_own: Any, target: Callable[..., None], kwargs: Any) -> None:
        self._process = vllm_s_own
        self._target = target
        self._kwargs = kwargs

    def start(self) -> None:
        global _changes
        _changes = _read_at_import(_changes_since(_AT_FIRST))
        began = _kept_or_new(self._process.name)
        try:
            began.run(self._target, self._kwargs)
        except Exception as error:  # an object that cannot be pickled, or a process that has ended
            logger.warning("vLLM starts the engine's process itself: %r", error)
            began.end()
            self._process.start()
        else:
            self._process = began.process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


class _Context:
    """vLLM's own context for processes, except how a process starts."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def Process(self, *, target: Any, name: str, kwargs: Any) -> _EngineProcess:  # noqa: N802
        return _EngineProcess(
            self._own.Process(target=target, name=name, kwargs=kwargs), target, kwargs
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


_kept: CoreProcess | None = None
_changes: Changes = {}


def keep_one(changes: Changes, modules: Sequence[str] = _MODULES) -> CoreProcess:
    """Start the process of this process's next engine, with the environment of engines with these
    `changes()`."""
    global _kept
    _kept = CoreProcess(changes, modules)
    return _kept


def changes() -> Changes:
    """Return the differences of an engine's environment from this process's initial one, known once
    an engine has started."""
    return _changes


def _kept_or_new(name: str) -> CoreProcess:
    global _kept
    kept, _kept = _kept, None
    if kept is not None:
        began = time.monotonic()
        why = kept.why_not(name)
        if not why:
            waited_s = time.monotonic() - began
            logger.info(
                "the engine uses a preloaded process, after waiting %.1f s for it", waited_s
            )
            return kept
        logger.info("the preloaded process is unusable: %s", why)
        kept.end()
    return CoreProcess({}, name=name)


@contextlib.contextmanager
def begun_by_us() -> Iterator[None]:
    """Start vLLM's engines here while the block runs, and have vLLM spawn them and their workers.

    On a GPU outside of Ray vLLM forks by default. A forked process does not load plugins again, so
    its engine would have no heartbeat, and try no grammars.
    """
    from vllm.v1.engine import utils

    own = utils.get_mp_context

    def context() -> _Context:
        found = own()
        if found.get_start_method() != "spawn":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
            found = own()
        return _Context(found)

    utils.get_mp_context = context
    try:
        yield
    finally:
        utils.get_mp_context = own


def _changes_since(before: Mapping[str, str]) -> dict[str, str | None]:
    names = before.keys() | os.environ.keys()
    return {n: os.environ.get(n) for n in sorted(names) if before.get(n) != os.environ.get(n)}


def _is_read_later(name: str) -> bool:
    """Return whether a variable is read only when an engine starts: Ray's, and those that select
    devices."""
    return (
        name in (HEARTBEAT, SOCKET) or name.startswith("RAY_") or name.endswith("_VISIBLE_DEVICES")
    )


def _read_at_import(changes: Changes) -> dict[str, str | None]:
    return {name: value for name, value in changes.items() if not _is_read_later(name)}


@contextlib.contextmanager
def _environment(changes: Changes) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    try:
        _apply(changes)
        yield
    finally:
        _apply(before)


def _apply(changes: Changes) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
