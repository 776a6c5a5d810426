"""The colors of a panel: of fixed values, or of the levels and burn rates of the SLO file.

A panel with the name of a level turns orange at the level of a ticket and red at that of a page.
This also works for a fleet with custom levels, or without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from observability.alerts.slo_file import BURNS, Level, SloFile

GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"

# The lowest value of each color, lowest first; None: no lower limit.
Step = tuple[float | None, str]
# The steps themselves, or the name of a level.
Steps = Sequence[Step] | str
FINE: tuple[Step, ...] = ((None, GREEN),)
BAD_FROM_ONE: tuple[Step, ...] = ((None, GREEN), (1, RED))


def rising(warn: float, bad: float) -> tuple[Step, ...]:
    """Return steps for values of which low is good."""
    return ((None, GREEN), (warn, ORANGE), (bad, RED))


def falling(bad: float, warn: float) -> tuple[Step, ...]:
    """Return steps for values of which high is good."""
    return ((None, RED), (bad, ORANGE), (warn, GREEN))


def resolved(steps: Steps, slo: SloFile) -> Sequence[Step]:
    """Return the steps, or those of the level with that name. Yellow is outside the level's target,
    but below its ticket."""
    if not isinstance(steps, str):
        return steps
    level = slo.level(steps)
    if level is None:
        return FINE
    low, high = level.wanted or (None, None)
    under = [(_at(level, "page", "below"), RED), (_at(level, "ticket", "below"), ORANGE)]
    under = [(value, colour) for value, colour in [*under, (low, YELLOW)] if value is not None]
    over = [(_at(level, "ticket", "above"), ORANGE), (_at(level, "page", "above"), RED)]
    over = [(value, colour) for value, colour in [(high, YELLOW), *over] if value is not None]
    starts = [None, *(value for value, _ in under)]
    colours = [*(colour for _, colour in under), GREEN]
    return (*zip(starts, colours, strict=True), *over)


def burn_steps() -> tuple[Step, ...]:
    """Return yellow from the rate at which a budget does not last its period, then the alerts'
    rates."""
    fast, slow = BURNS["page"]
    return ((None, GREEN), (BURNS["ticket"][-1][0], YELLOW), (slow[0], ORANGE), (fast[0], RED))


def _at(level: Level, severity: Literal["page", "ticket"], end: str) -> float | None:
    limit = level.limit(severity)
    value: float | None = getattr(limit, end, None)
    return value
