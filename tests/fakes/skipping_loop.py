"""An event loop whose time passes only while nothing can happen.

While no socket is readable or writable, its clock jumps to the next timer. So a test measures the
time that the code asks for, and not the time that a busy machine takes. The other ends of all
connections must be in the same loop.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _WithoutWaiting(selectors.DefaultSelector):
    """`skipped_s`: the seconds for which select would have waited in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.skipped_s += max(0.0, timeout)
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """Use it as `asyncio.Runner(loop_factory=SkippingLoop)`."""

    def __init__(self) -> None:
        self._without_waiting = _WithoutWaiting()
        super().__init__(self._without_waiting)

    def time(self) -> float:
        return self._without_waiting.skipped_s
