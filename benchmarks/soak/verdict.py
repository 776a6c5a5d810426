"""Which of the watched figures grow for ever, and what is left when the traffic has ended.

What counts as growth, an hour: less is nothing that a soak of minutes can tell from chance, and
more is what a leak is like. At 5 requests a second, whoever loses one of each hundred loses 180 an
hour; what is lost with each change of keys is 120 or more. 16 MB an hour are 900 bytes a request,
half of what a gateway's record of one takes.

Memory comes in steps of some MB, which allocators and the kernel take and keep: a few of them in a
short soak look like a slope, so that STEP_MB in all have to come together as well. A short soak
therefore finds large leaks alone; `least_found` says which.

What fills up (a cache, an allocator's arenas) grows, too, but not for ever. Where there are cycles
enough to judge two halves of them by themselves, what has slowed down to less than half in the
later one, and is not certain to grow there at all, is told apart as filling; a leak goes on. Of a
process that began meanwhile the same warm-up is left out as of the soak.
"""

from __future__ import annotations

from collections import defaultdict
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
# What ends meanwhile, or is away at times, has no slope of its own.
THERE_FOR = 0.9
SLOWED_TO = 0.5


@dataclass(frozen=True)
class Watched:
    """A figure that was there all of `seconds`; `halves` where there are cycles enough for them."""

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

    @property
    def grows(self) -> bool:
        return self.verdict == "GROWS"

    def row(self) -> str:
        of = self.slope
        return (
            f"{self.figure.unit:17} {self.figure.whose:45.45} {of.level:10.2f} {of.per_hour:+10.2f}"
            f" ({of.low:+.2f} to {of.high:+.2f}) {self.verdict}"
        )

    def told(self) -> dict[str, Any]:
        of = self.slope
        interval = [round(of.low, 2), round(of.high, 2)]
        halves = [round(half.per_hour, 2) for half in self.halves or ()]
        return {
            "whose": self.figure.whose,
            "level": round(of.level, 2),
            "per_hour": round(of.per_hour, 2),
            "interval": interval,
            "halves_per_hour": halves,
        }


def watched(
    samples: Sequence[tuple[float, Sample]], cycle_s: float, warm_up_s: float = 0.0
) -> list[Watched]:
    """What was there in nearly every sample after its warm-up, with its slope; (seconds, sample)
    pairs, from 0 on."""
    series: defaultdict[Figure, list[tuple[float, float]]] = defaultdict(list)
    for at, sample in samples:
        for figure, value in sample.items():
            series[figure].append((at, value))
    # a kind of keys that is away at times is none of them then
    for figure in [of for of in series if of.unit == watch.REDIS_KEYS]:
        series[figure] = [(at, sample.get(figure, 0.0)) for at, sample in samples]
    found = []
    for figure, values in sorted(series.items()):
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
    """An hour: what grows by less is not found in a soak of which so many seconds count."""
    return max(BOUNDS_PER_HOUR[unit], _step(unit) * HOUR_S / seconds)


def _halves(counted: Sequence[tuple[float, float]], cycle_s: float) -> tuple[Slope, Slope] | None:
    middle = (counted[0][0] + counted[-1][0]) / 2
    early = slope_of([(at, value) for at, value in counted if at < middle], cycle_s)
    late = slope_of([(at, value) for at, value in counted if at >= middle], cycle_s)
    return (early, late) if early is not None and late is not None else None


def _step(unit: str) -> float:
    return STEP_MB if unit in (watch.MEMORY, watch.REDIS_MEMORY) else 0.0


def growing(found: Iterable[Watched]) -> list[Watched]:
    return [one for one in found if one.grows]


def left_over(before: Sample, after: Sample, held: Mapping[str, int]) -> dict[str, int]:
    """What is held for requests though none is under way; `held` is that of Redis and engines.

    `before` was taken from the same fleet when it was idle, too.
    """
    tasks = Figure(watch.TASKS, "gateways")
    of_requests = [after.get(Figure(watch.HELD, whose), 0.0) for whose in watch.OF_REQUESTS]
    return {
        "tasks": max(0, int(after[tasks] - before[tasks])),
        "held_for_requests": int(sum(of_requests)),
        **held,
    }
