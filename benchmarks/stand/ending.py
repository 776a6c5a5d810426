"""How every benchmark ends early: as with Ctrl-C, whoever ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def stopped_in_the_end() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt here, so that what a benchmark has started is stopped.

    For the main thread alone.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
