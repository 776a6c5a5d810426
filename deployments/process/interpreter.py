"""Interpreter settings of a gateway's process, so that nothing blocks the event loop for long.

A thread that reads a long prompt switches soon. Imported objects are excluded from garbage
collection: a full collection over them takes 50 ms and more, in which no stream continues.
"""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = 0.0005


def keep_responsive() -> None:
    """Apply the settings, in a process without other tasks, after all imports."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
