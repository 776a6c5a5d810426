"""How vLLM's engine process starts: it is spawned, and imports without the garbage collector.

vLLM spawns its EngineCore once it has read its configuration. The new process imports vLLM, which
takes about half of a small engine's start. Imports are a fifth less work without the garbage
collector, which finds nothing among modules and leaves them alone from then on.
Source: `CoreEngineProcManager` in vllm/v1/engine/utils.py of vLLM 0.32.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any


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


class _Task:
    """The task of a new process, which loads it, and so its modules, without the collector."""

    def __init__(self, target: Callable[..., None], kwargs: Mapping[str, Any]) -> None:
        self._target = target
        self._kwargs = kwargs

    def __call__(self) -> None:
        self._target(**self._kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (bytes(ForkingPickler.dumps((self._target, self._kwargs))),)


def _loaded(pickled: bytes) -> _Task:
    with without_gc():
        return _Task(*pickle.loads(pickled))


class SpawnContext:
    """vLLM's own context for processes, except how a process loads its task."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def Process(self, *, target: Any, name: str, kwargs: Any) -> SpawnProcess:  # noqa: N802
        process: SpawnProcess = self._own.Process(target=_Task(target, kwargs), name=name)
        return process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


@contextlib.contextmanager
def spawned_engines() -> Iterator[None]:
    """Have vLLM spawn its engines, in a `SpawnContext`, and their workers while the block runs.

    On a GPU outside of Ray vLLM forks by default. A forked process does not load plugins again, so
    its engine would have no heartbeat, and try no grammars.
    """
    from vllm.v1.engine import utils

    own = utils.get_mp_context

    def context() -> SpawnContext:
        found = own()
        if found.get_start_method() != "spawn":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
            found = own()
        return SpawnContext(found)

    utils.get_mp_context = context
    try:
        yield
    finally:
        utils.get_mp_context = own
