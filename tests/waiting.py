"""Waiting for something to become true, with a limit."""

import asyncio
from collections.abc import Callable


async def until(truth: Callable[[], object], within_s: float = 5.0) -> None:
    """Raises TimeoutError when it has not become true."""
    async with asyncio.timeout(within_s):
        while not truth():  # noqa: ASYNC110  # nothing tells when
            await asyncio.sleep(0.005)
