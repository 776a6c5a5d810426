"""Waiting for something to become true, with a limit."""

import asyncio
from collections.abc import Callable
from typing import Any


async def until(
    truth: Callable[[], object], within_s: float = 60.0, every_s: float = 0.005
) -> None:
    """Raises TimeoutError when it has not become true."""
    async with asyncio.timeout(within_s):
        while not truth():  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(every_s)


async def cancelled(task: asyncio.Future[Any]) -> None:
    """End a task. Again if need be: Python 3.11 can lose a cancellation in `wait_for`."""
    async with asyncio.timeout(60.0):
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=0.1)
