"""Which watched figures keep growing, and what is left after the traffic. Pure.

Bounds of growth per hour are above the noise of a run of minutes, and below leaks. At 5 requests
a second, a loss of 1 % of them is 180 an hour, and 900 bytes a request are 16 MB an hour: half of
a gateway's record of one.

Memory grows in steps of some MB that allocators and the kernel keep. So it has to grow by STEP_MB
in all as well. A short run finds large leaks only (`least_found`).

Caches and arenas grow until they are full. With enough cycles for two halves, growth counts as
filling if it slows to less than SLOWED_TO in the later half, and may have stopped. The warm-up of
a process that starts later is omitted as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.soak import watch
from benchmarks.soak.slopes import HOUR_S, Slope, slope_of
from benchmarks.soak.watch import Figure, Sample

BOUNDS_PER_HOUR = {
    watch.MEMORY: 16.0,
    watch.REDIS_MEMORY: 16.0,
    watch.FILES: 30.0,
    watch.THREADS: 30.0,
    watch.PROCESSES: 30.0,
    watch.TASKS: 30.0,
    watch.HELD: 60.0,
    watch.REDIS_KEYS: 60.0,
    watch.SERIES: 60.0,
}
STEP_MB = 4.0
# The least share of samples that a figure needs for a slope.
THERE_FOR = 0.9
SLOWED_TO = 0.5


@dataclass(frozen=True)
class Watched:
    """A figure and its slope over `seconds`; `halves` where there are cycles enough."""

    figure: Figure
    slope: Slope
    seconds: float
    halves: tuple[Slope, Slope] | None = None

    @property
    def verdict(self) -> Literal["steady", "fills", "GROWS"]:
        bound = BOUNDS_PER_HOUR[self.figure.unit]
        grown = self.slope.per_hour * self.seconds / HOUR_S
        if not self.slope.exceeds(bound) or grown < _step(self.figure.unit):
            return "steady"
        if self.halves is not None:
            early, late = self.halves
            if late.per_hour < SLOWED_TO * early.per_hour and not late.exceeds(bound):
                return "fills"
        return "GROWS"

    def row(self) -> str:
        of = self.slope
        return (
            f"{self.figure.unit:17} {self.figure.whose:45.45} {of.level:10.2f} {of.per_hour:+10.2f}"
            f" ({of.low:+.2f} to {of.high:+.2f}) {self.verdict}"
        )

    def told(self) -> dict[str, Any]:
        of = self.slope
        return {
            "whose": self.figure.whose,
            "level": round(of.level, 2),
            "per_hour": round(of.per_hour, 2),
            "interval": [round(of.low, 2), round(of.high, 2)],
            "halves_per_hour": [round(half.per_hour, 2) for half in self.halves or ()],
        }


def watched(
    samples: Sequence[tuple[float, Sample]], cycle_s: float, warm_up_s: float = 0.0
) -> list[Watched]:
    """The figures in nearly all samples after their warm-up. Samples are (seconds, sample) pairs
    that begin at 0."""
    found = []
    for figure in sorted({figure for _, sample in samples for figure in sample}):
        # a kind of keys without a count has none
        absent = 0.0 if figure.unit == watch.REDIS_KEYS else None
        there = [(at, sample.get(figure, absent)) for at, sample in samples]
        values = [(at, value) for at, value in there if value is not None]
        since = warm_up_s
        if values[0][0] > samples[0][0]:
            since += values[0][0]
        counted = [(at, value) for at, value in values if at >= since]
        if len(counted) < THERE_FOR * sum(at >= since for at, _ in samples):
            continue
        if (slope := slope_of(counted, cycle_s)) is not None:
            seconds = counted[-1][0] - counted[0][0]
            found.append(Watched(figure, slope, seconds, _halves(counted, cycle_s)))
    return found


def least_found(unit: str, seconds: float) -> float:
    """The least growth per hour that a run finds of which `seconds` count."""
    return max(BOUNDS_PER_HOUR[unit], _step(unit) * HOUR_S / seconds)


def _halves(counted: Sequence[tuple[float, float]], cycle_s: float) -> tuple[Slope, Slope] | None:
    middle = (counted[0][0] + counted[-1][0]) / 2
    early = slope_of([(at, value) for at, value in counted if at < middle], cycle_s)
    late = slope_of([(at, value) for at, value in counted if at >= middle], cycle_s)
    return (early, late) if early is not None and late is not None else None


def _step(unit: str) -> float:
    return STEP_MB if unit in (watch.MEMORY, watch.REDIS_MEMORY) else 0.0


def growing(found: Iterable[Watched]) -> list[Watched]:
    return [one for one in found if one.verdict == "GROWS"]


def left_over(before: Sample, after: Sample, held: Mapping[str, int]) -> dict[str, int]:
    """What is held for requests though none is in progress. `held`: by Redis and engines. `before`:
    the same fleet, idle as well."""
    tasks = Figure(watch.TASKS, "gateways")
    of_requests = [after.get(Figure(watch.HELD, whose), 0.0) for whose in watch.OF_REQUESTS]
    return {
        "tasks": max(0, int(after[tasks] - before[tasks])),
        "held_for_requests": int(sum(of_requests)),
        **held,
    }
