"""Which of the watched figures grow for ever, and what is left when the traffic has ended.

What counts as growth, an hour: less is nothing that a soak of minutes can tell from chance, and
more is what a leak is like. At 5 requests a second, whoever loses one of each hundred loses 180 an
hour; what is lost with each change of keys is 120 or more. 16 MB an hour are 900 bytes a request,
half of what a gateway's record of one takes; allocators and the kernel take and give in steps of
some MB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.soak import watch
from benchmarks.soak.slopes import Slope, slope_of
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
# A process that began or ended meanwhile has no slope of its own.
THERE_FOR = 0.9


@dataclass(frozen=True)
class Watched:
    """A figure that was there all the time."""

    figure: Figure
    slope: Slope

    @property
    def grows(self) -> bool:
        return self.slope.exceeds(BOUNDS_PER_HOUR[self.figure.unit])

    def row(self) -> str:
        of = self.slope
        verdict = "GROWS" if self.grows else "steady"
        return (
            f"{self.figure.unit:17} {self.figure.whose:45.45} {of.level:10.2f} {of.per_hour:+10.2f}"
            f" ({of.low:+.2f} to {of.high:+.2f}) {verdict}"
        )

    def told(self) -> dict[str, Any]:
        of = self.slope
        interval = [round(of.low, 2), round(of.high, 2)]
        return {
            "whose": self.figure.whose,
            "level": round(of.level, 2),
            "per_hour": round(of.per_hour, 2),
            "interval": interval,
        }


def watched(samples: Sequence[tuple[float, Sample]], cycle_s: float) -> list[Watched]:
    """What was there in nearly every sample, with its slope; (seconds, sample) pairs."""
    series: defaultdict[Figure, list[tuple[float, float]]] = defaultdict(list)
    for at, sample in samples:
        for figure, value in sample.items():
            series[figure].append((at, value))
    # a kind of keys that is away at times is none of them then
    for figure in [of for of in series if of.unit == watch.REDIS_KEYS]:
        series[figure] = [(at, sample.get(figure, 0.0)) for at, sample in samples]
    found = []
    for figure, values in sorted(series.items()):
        if len(values) < THERE_FOR * len(samples):
            continue
        if (slope := slope_of(values, cycle_s)) is not None:
            found.append(Watched(figure, slope))
    return found


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
