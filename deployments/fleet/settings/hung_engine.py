"""What becomes of an engine that hangs, as a fleet file says it for a pool."""

from __future__ import annotations

from typing import Literal

HungEngine = Literal["suspect", "restart"]


def is_restarted(setting: HungEngine | None, on_cpu: bool) -> bool:
    """Whether an engine that hangs is ended, so that Ray Serve starts another.

    `setting`: None where the fleet file has none. `on_cpu`: the engine computes on CPUs. Tests
    (`make drill-hangs`) have shown only there that nothing but a hung engine is ended.
    """
    return setting == "restart" or (setting is None and on_cpu)
