"""The colours of a panel, from the levels and burn rates of the SLO file.

A panel turns orange at the level of a ticket and red at that of a page. This also works for a fleet
with custom levels, or without one.
"""

from __future__ import annotations

from typing import Literal

from observability.alerts.slo_file import BURNS, Level, SloFile
from observability.dashboards.panels import FINE, GREEN, ORANGE, RED, YELLOW, Step


def steps(slo: SloFile, name: str) -> tuple[Step, ...]:
    """Return the steps of the level called `name`; yellow is outside the target, but below a
    ticket."""
    level = slo.level(name)
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
