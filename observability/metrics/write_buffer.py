"""A write buffer for metrics: increments are added up in memory and written together.

A metric in a memory-mapped file takes a lock, checks and a write for each increment: microseconds,
twenty times a request. Scrapes do not see increments before they are flushed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable

from prometheus_client import Counter, Histogram

Labels = tuple[str, ...]


class WriteBuffer:
    """The buffer of one process, for one thread."""

    def __init__(self) -> None:
        self._counters: defaultdict[tuple[Counter, Labels], float] = defaultdict(float)
        self._histograms: dict[tuple[Histogram, Labels], _Observed] = {}

    def inc(self, counter: Counter, labels: Labels, amount: float = 1.0) -> None:
        self._counters[counter, labels] += amount

    def observe(self, histogram: Histogram, labels: Labels, amount: float) -> None:
        self._observed(histogram, labels).add(amount)

    def observe_all(self, histogram: Histogram, labels: Labels, amounts: Iterable[float]) -> None:
        """Observe several amounts; a stream has hundreds."""
        self._observed(histogram, labels).add_all(sorted(amounts))

    def flush(self) -> None:
        """Write all counts to the metrics."""
        counters, self._counters = self._counters, defaultdict(float)
        for (counter, labels), amount in counters.items():
            counter.labels(*labels).inc(amount)
        histograms, self._histograms = self._histograms, {}
        for (histogram, labels), observed in histograms.items():
            observed.write(histogram.labels(*labels))

    def _observed(self, histogram: Histogram, labels: Labels) -> _Observed:
        observed = self._histograms.get((histogram, labels))
        if observed is None:
            observed = self._histograms[histogram, labels] = _Observed(histogram._upper_bounds)
        return observed


class _Observed:
    """Amounts by bucket: `bounds` are the buckets' upper bounds, the last is infinite."""

    def __init__(self, bounds: list[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._total = 0.0

    def add(self, amount: float) -> None:
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._total += amount

    def add_all(self, amounts: list[float]) -> None:
        """Add amounts in ascending order, so that the search is over buckets and not over
        amounts."""
        self._total += sum(amounts)
        below, counted = 0, len(amounts)
        for bucket, bound in enumerate(self._bounds):
            if below == counted:
                break
            up_to = bisect_right(amounts, bound, below)
            self._counts[bucket] += up_to - below
            below = up_to

    def write(self, histogram: Histogram) -> None:
        histogram._sum.inc(self._total)
        for bucket, count in zip(histogram._buckets, self._counts, strict=True):
            if count:
                bucket.inc(count)
