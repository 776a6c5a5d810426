"""How every benchmark ends early: as with Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def stopped_in_the_end() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that the benchmark stops what it has started. Only for
    the main thread."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
