"""Forecast of arrivals: a rate, its trend and their certainty, from counters.

A `History` keeps samples of the counters for HISTORY_S, dense lately and sparse before. A line is
fitted to the arrivals since the last change. A change is a deviation that noise does not explain.
The newest WINDOWS_S are each compared with the prediction of the line before them. So a step
change is detected within seconds, and Poisson noise is ignored at every request rate. All of it is
functions of data.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

HISTORY_S = 300.0
WINDOWS_S = (3.0, 10.0, 30.0, 100.0)
# Noise exceeds this many standard deviations in one of some thousands of checks, and there is a
# check every second.
CHANGE_SIGMA = 4.0
# Over less than this time a slope is noise.
TREND_S = 30.0
# Only the part of a slope above this many of its standard deviations counts.
SLOPE_SIGMA = 1.5
# Two samples are at most this share of their age apart: some 50 samples for all of HISTORY_S.
RESOLUTION = 0.12
# Samples closer to each other than this teach nothing.
LEAST_S = 0.1
PRIOR_S = 30.0
# One surprise counts as at most this multiple of the usual one.
OUTLIER = 16.0


class DemandSample(NamedTuple):
    """Counters at a time in seconds; None if unknown.

    `rejected` of the arrived requests were rejected or overflowed. `progressed` requests were
    answered; running ones count half. `replica_s` are the seconds that replicas ran.
    """

    at: float
    arrived: float
    rejected: float
    replica_s: float
    uncached_tokens: float
    output_tokens: float
    prompt_tokens: float | None = None
    progressed: float | None = None


@dataclass(frozen=True)
class Forecast:
    """A line through the rate of arrivals: `rate` per second at its newest sample, and its slope.

    It is most certain `mean_age_s` before that, with variance `level_var`; `slope_var` is the
    slope's. It covers `seen_s` seconds.
    """

    rate: float = 0.0
    slope: float = 0.0
    mean_age_s: float = 0.0
    level_var: float = 0.0
    slope_var: float = 0.0
    seen_s: float = 0.0

    def at(self, ahead_s: float, sigmas: float = 0.0) -> float:
        """Return the rate expected then, `sigmas` standard deviations up; never below 0.

        A trend is extended no longer than it has been seen.
        """
        ahead = min(ahead_s, self.seen_s)
        distance = ahead + self.mean_age_s if self.slope else 0.0
        variance = self.level_var + self.slope_var * distance * distance
        return max(0.0, self.rate + self.slope * ahead + sigmas * math.sqrt(variance))


@dataclass(frozen=True)
class History:
    """The samples, and their learned noise.

    `changed_at`: the last change of the arrivals. `dispersion`: the variance of the requests per
    second over their mean: 1 for Poisson arrivals, more for bursts. `token_dispersion`: the same of
    uncached tokens, in mean requests: 1 for Poisson arrivals of equal size, 2 for exponential
    sizes.
    """

    samples: tuple[DemandSample, ...] = ()
    changed_at: float = 0.0
    dispersion: float = 1.0
    token_dispersion: float = 2.0

    def heard(self, sample: DemandSample) -> History:
        """Return the history with the newest sample; unchanged if it is hardly newer than the
        last."""
        silent = sample.at - self.samples[-1].at if self.samples else math.inf
        if silent < LEAST_S:
            return self
        if silent > HISTORY_S:
            return replace(self, samples=(sample,), changed_at=sample.at)
        samples = _added(self.samples, sample)
        began = _changed_at(samples, self.changed_at, self.dispersion)
        line = _fit(_from(samples, began), self.dispersion)
        size = _growth(samples, "uncached_tokens", "arrived") or 0.0
        before, lasted = samples[-2], sample.at - samples[-2].at
        # The initial assumption counts like PRIOR_S seconds of samples.
        memory = min(HISTORY_S, sample.at - samples[0].at + PRIOR_S)
        requests = _learned(
            self.dispersion, sample.arrived - before.arrived, line.rate * lasted, lasted, memory
        )
        tokens = sample.uncached_tokens - before.uncached_tokens
        of_size = tokens / size if size > 0.0 else 0.0
        sizes = _learned(self.token_dispersion, of_size, line.rate * lasted, lasted, memory)
        return History(samples, began, max(1.0, requests), max(1.0, sizes))

    @property
    def line(self) -> Forecast:
        return _fit(_from(self.samples, self.changed_at), self.dispersion)

    def growth(self, count: str, window_s: float) -> float:
        """Return the growth of this counter in the last `window_s` seconds."""
        if not self.samples:
            return 0.0
        newest, counted = self.samples[-1], attrgetter(count)
        oldest = _from(self.samples, newest.at - window_s)[0]
        # large counts that fell and were lowered leave a rounding error, which is not growth
        return float(max(0.0, counted(newest) - counted(oldest)))

    def per_request(self, count: str) -> float | None:
        """Return the tokens of the mean request, over all samples; None without arrivals or
        reports.

        `count` is a token counter of `DemandSample`; output tokens are relative to `progressed`.
        """
        unit = "progressed" if count == "output_tokens" else "arrived"
        return _growth(self.samples, count, unit)


def _added(samples: Sequence[DemandSample], sample: DemandSample) -> tuple[DemandSample, ...]:
    """Add a sample. A counter that went down (a gateway was restarted) continues from its new
    value."""
    fallen = [_fallen(old, new) for old, new in zip(samples[-1], sample, strict=True)]
    if any(fallen[1:]):
        samples = [_lowered(old, fallen) for old in samples]
    return (*_thinned(samples, sample.at), sample)


def _fallen(old: float | None, new: float | None) -> float:
    return 0.0 if old is None or new is None else max(0.0, old - new)


def _lowered(sample: DemandSample, fallen: Sequence[float]) -> DemandSample:
    at, *counts = sample
    lower = [None if c is None else c - f for c, f in zip(counts, fallen[1:], strict=True)]
    return DemandSample._make([at, *lower])


def _thinned(samples: Sequence[DemandSample], now: float) -> list[DemandSample]:
    first = _index(samples, now - HISTORY_S)
    kept = [samples[first]]
    for index in range(first + 1, len(samples)):
        following = samples[index + 1].at if index + 1 < len(samples) else now
        if following - kept[-1].at > RESOLUTION * (now - samples[index].at):
            kept.append(samples[index])
    return kept


def _fit(samples: Sequence[DemandSample], dispersion: float) -> Forecast:
    """Return the line through the arrivals, with equal weight for each second."""
    if len(samples) < 2:
        return Forecast()
    newest, oldest = samples[-1], samples[0]
    seen = newest.at - oldest.at
    mean = (newest.arrived - oldest.arrived) / seen
    middle = seen / 2.0
    spread = covariance = 0.0
    for before, after in pairwise(samples):
        later = middle - (newest.at - (before.at + after.at) / 2.0)
        spread += (after.at - before.at) * later * later
        covariance += later * (after.arrived - before.arrived)
    # As if at least one request had arrived: none in a short time does not mean "never".
    noise = dispersion * max(mean, 1.0 / seen)
    slope = slope_var = 0.0
    if seen >= TREND_S and spread > 0.0:
        slope, slope_var = covariance / spread, noise / spread
        surprise = SLOPE_SIGMA**2 * slope_var
        slope = slope * (1.0 - surprise / slope**2) if slope**2 > surprise else 0.0
    return Forecast(
        rate=max(0.0, mean + slope * middle),
        slope=slope,
        mean_age_s=middle,
        level_var=noise / seen,
        slope_var=slope_var,
        seen_s=seen,
    )


def _changed_at(samples: Sequence[DemandSample], since: float, dispersion: float) -> float:
    """Return the last change of the arrivals: `since`, or the start of the first window whose
    arrivals noise does not explain."""
    first = _index(samples, since)
    newest = samples[-1]
    for window in WINDOWS_S:
        split = _index(samples, newest.at - window)
        lasted = newest.at - samples[split].at
        # The time before the window must not be shorter than the window.
        if split <= first or samples[split].at - samples[first].at < lasted:
            continue
        line = _fit(samples[first : split + 1], dispersion)
        expected = lasted * line.at(lasted / 2.0)
        came = newest.arrived - samples[split].arrived
        doubt = lasted * (line.at(lasted / 2.0, 1.0) - line.at(lasted / 2.0))
        variance = dispersion + doubt * doubt / max(expected, 1.0)
        # The root of a Poisson number (Anscombe's) is about normal, with variance 1/4.
        sigmas = 2.0 * (math.sqrt(came + 0.375) - math.sqrt(expected + 0.375))
        if abs(sigmas) > CHANGE_SIGMA * math.sqrt(variance):
            return samples[split].at
    return samples[first].at


def _learned(
    dispersion: float, came: float, expected: float, lasted_s: float, memory_s: float
) -> float:
    """Return the dispersion, updated by the arrivals of `lasted_s` seconds and their
    expectation."""
    if expected <= 0.0:
        return dispersion
    surprise = min((came - expected) ** 2 / expected, OUTLIER * dispersion)
    return dispersion + min(1.0, lasted_s / memory_s) * (surprise - dispersion)


def _growth(samples: Sequence[DemandSample], count: str, unit: str) -> float | None:
    counted, units = attrgetter(count), attrgetter(unit)

    def told(sample: DemandSample) -> bool:
        return counted(sample) is not None and units(sample) is not None

    first = next(filter(told, samples), None)
    last = next(filter(told, reversed(samples)), None)
    if first is None or last is None or units(last) <= units(first):
        return None
    grown = max(0.0, counted(last) - counted(first))
    return float(grown / (units(last) - units(first)))


def _from(samples: Sequence[DemandSample], begin: float) -> Sequence[DemandSample]:
    return samples[_index(samples, begin) :]


def _index(samples: Sequence[DemandSample], at: float) -> int:
    """Return the newest sample that is no newer than this; the oldest if all are."""
    return max(0, bisect_right(samples, at, key=lambda sample: sample.at) - 1)
