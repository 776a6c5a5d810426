"""How every benchmark ends early: as with Ctrl-C, or with the words of a Problem."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from common.errors import Problem


@contextmanager
def stopped_in_the_end() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that the benchmark stops what it has started. A Problem
    ends the process with its message and exit code 1. Only for the main thread."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except Problem as problem:
        sys.exit(f"error: {problem}")
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
