"""How the interpreter of a gateway's process is set: nothing in it may keep the event loop long.

A thread that reads a long prompt gives way soon. And what was imported is no garbage: a full
collection that looks at all of it takes 50 ms and more, in which no stream goes on.
"""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = 0.0005


def keep_responsive() -> None:
    """For a process that has no other task, once all is imported."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
