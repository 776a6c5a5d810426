"""A benchmark's child processes, and the pipe between each of them and its parent.

The parent calls `started` and `heard`, the child `serve`, `hear` and `say`. A child ends with its
parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from typing import Any

import uvloop

START_S, STOP_S = 60.0, 10.0

_spawn = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def started(target: Callable[..., None], *settings: object) -> Iterator[Connection]:
    """The pipe to a child that runs `target`. The child has ended at the end."""
    ours, theirs = _spawn.Pipe()
    child = _spawn.Process(target=target, args=(theirs, *settings), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    except BaseException:
        child.kill()
        raise
    finally:
        ours.close()
        child.join(STOP_S)
        if child.is_alive():
            child.kill()
            child.join()


def heard(pipe: Connection, within_s: float) -> Any:
    """The child's next message. Raises TimeoutError, and RuntimeError where it has ended."""
    if not pipe.poll(max(0.0, within_s)):
        raise TimeoutError(f"a process of the benchmark sent nothing for {within_s:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the benchmark ended early; see above") from None


def serve(serving: Coroutine[Any, Any, None]) -> None:
    """Run a child until it has finished or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent acts on it
    with contextlib.suppress(EOFError, asyncio.CancelledError):  # the parent is gone
        uvloop.run(serving)


async def hear(pipe: Connection) -> Any:
    """The parent's next message. Raises EOFError when it is gone."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(pipe.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(pipe.fileno())
    return pipe.recv()


def say(pipe: Connection, what: Any) -> None:
    """Send to the parent, if it still runs. No reader may be on the pipe."""
    os.set_blocking(pipe.fileno(), True)  # uvloop's readers make it non-blocking
    with contextlib.suppress(BrokenPipeError):
        pipe.send(what)
