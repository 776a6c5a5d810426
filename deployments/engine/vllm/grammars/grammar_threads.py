"""The threads of an engine that compile constraints: slow compiles do not delay others.

vLLM compiles in half as many threads as there are cores, first come first served, and each compile
of xgrammar takes eight more. On two cores, one that takes seconds delays the engine's steps and the
compiles that take a millisecond. Here those that a replica marks as slow have separate threads at a
low priority, and xgrammar takes at most half of the cores. A replica limits how many slow ones it
admits at once (`grammar_gate.py`). Source: vllm/v1/structured_output/__init__.py and
backend_xgrammar.py of vLLM 0.32.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# In a request's `extra_args`: its constraint compiles slowly.
SLOW = "antefix_slow_grammar"
# xgrammar's threads inherit it. Not 19: on busy cores a thread that waits for a core with Python's
# lock would delay the engine's steps.
SLOW_NICE = 10
# Threads for constraints that compile immediately.
QUICK_THREADS = 4


class GrammarThreads:
    """A replacement for vLLM's executor of compiles."""

    def __init__(self) -> None:
        cores = os.cpu_count() or 1
        self._quick = ThreadPoolExecutor(QUICK_THREADS)
        # a compile continues after its client has left, so there are at least as many threads as
        # turns
        self._slow = ThreadPoolExecutor(8 + cores, initializer=_yield_to_others)

    def submit(self, compile_one: Callable[[Any], Any], request: Any) -> Future[Any]:
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        threads = self._slow if extra.get(SLOW) else self._quick
        return threads.submit(compile_one, request)

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        for threads in (self._quick, self._slow):
            threads.shutdown(wait=wait, cancel_futures=cancel_futures)


def _yield_to_others() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), SLOW_NICE)


def compile_in_them() -> None:
    """Install in this process's engine."""
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    init, post_init = StructuredOutputManager.__init__, XgrammarBackend.__post_init__

    def init_with_threads(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if hasattr(self, "executor"):
            self.executor.shutdown(wait=False)
            self.executor = GrammarThreads()

    def post_init_with_fewer_threads(self: Any) -> None:
        leave_cores_free()
        post_init(self)

    StructuredOutputManager.__init__ = init_with_threads
    XgrammarBackend.__post_init__ = post_init_with_fewer_threads


def leave_cores_free() -> None:
    """Limit every compiler of xgrammar that is created from now on. Repeated calls have no
    effect."""
    import xgrammar

    init, most = xgrammar.GrammarCompiler.__init__, max(1, (os.cpu_count() or 1) // 2)
    if init.__module__ == __name__:
        return

    def init_with_fewer_threads(self: Any, *args: Any, max_threads: int = 8, **kwargs: Any) -> None:
        init(self, *args, max_threads=min(max_threads, most), **kwargs)

    xgrammar.GrammarCompiler.__init__ = init_with_fewer_threads  # type: ignore[method-assign]
