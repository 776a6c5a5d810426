"""What one gateway process served in the last minutes: requests by outcome, goodput and tokens.

Kept in memory, for the page at /antefix/: Prometheus has the counts of all gateways, for longer.
A pool's counts are kept for POOL_MINUTES, and a tenant's part of them for TENANT_MINUTES. Of
tenants, the SERIES_OF_TENANTS that sent the last requests are kept.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from observability.traces.request_record import Outcome

MINUTE_S = 60
POOL_MINUTES = 1440
TENANT_MINUTES = 60
SERIES_OF_TENANTS = 1000
# The names of counts. All exist from the beginning, so that rare ones do not look like a leak.
NAMES = (*get_args(Outcome), "good", "bad", "prompt_tokens", "cached_tokens", "output_tokens")
# A history has the shortest of these steps that needs no more points than this.
STEPS_S = (60, 300, 900)
MOST_POINTS = 96


@dataclass(frozen=True)
class TrafficHistory:
    """Counts by name in steps of `step_s`, the first of which begins at `begins`, in Unix time.

    Every list has the same length. The last step has not ended yet.
    """

    begins: int
    step_s: int
    points: int
    counts: Mapping[str, list[int]] = field(default_factory=dict)


class MinuteCounts:
    """Counts of one series since the process began, and by minute for the last `minutes`.

    A minute is a whole number of minutes in Unix time.
    """

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes
        self._minute = 0
        self._current: Counter[str] = Counter(dict.fromkeys(NAMES, 0))
        self._closed: deque[tuple[int, dict[str, int]]] = deque()
        self._window: Counter[str] = Counter()
        self._total: Counter[str] = Counter()

    def add(self, minute: int, amounts: Mapping[str, int]) -> None:
        self._advance(minute)
        for name, amount in amounts.items():
            self._current[name] += amount

    def total(self) -> dict[str, int]:
        """Since the process began; nothing for names that were not counted."""
        return dict(self._total + self._current)

    def recent(self, minute: int) -> dict[str, int]:
        """Of the last `minutes`, the current one included."""
        self._advance(minute)
        return dict(self._window + self._current)

    def history(self, minute: int, minutes: int) -> TrafficHistory:
        """Of the last `minutes`, or of those that are kept."""
        self._advance(minute)
        minutes = min(minutes, self._minutes)
        step_s = next(step for step in STEPS_S if minutes * MINUTE_S <= MOST_POINTS * step)
        points = -(-minutes * MINUTE_S // step_s)
        first = self._minute * MINUTE_S // step_s - points + 1
        counts: dict[str, list[int]] = {}
        for at, amounts in reversed((*self._closed, (self._minute, +self._current))):
            place = at * MINUTE_S // step_s - first
            if place < 0:
                break
            for name, amount in amounts.items():
                counts.setdefault(name, [0] * points)[place] += amount
        return TrafficHistory(first * step_s, step_s, points, counts)

    def _advance(self, minute: int) -> None:
        """Close the minute before `minute`. A clock that goes back closes nothing."""
        if minute <= self._minute:
            return
        if closed := dict(+self._current):
            self._closed.append((self._minute, closed))
            self._window.update(closed)
            self._total.update(closed)
            self._current = Counter(dict.fromkeys(self._current, 0))
        self._minute = minute
        while self._closed and self._closed[0][0] <= minute - self._minutes:
            self._window.subtract(self._closed.popleft()[1])


class ServedTraffic:
    """All pools of one gateway process. `clock` returns Unix time in seconds.

    Names of counts: an outcome of `antefix_requests`; `good` and `bad` of the objective goodput;
    `prompt_tokens`, `cached_tokens` (part of them) and `output_tokens`.
    `process` identifies the process, whose counts begin at `since`.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.process = secrets.token_hex(4)
        self.since = clock()
        self._pools: defaultdict[str, MinuteCounts] = defaultdict(_of_a_pool)
        self._tenants: dict[tuple[str, str], MinuteCounts] = {}

    @property
    def now(self) -> float:
        """Unix time in seconds."""
        return self._clock()

    @property
    def minute(self) -> int:
        """The current one."""
        return int(self.now) // MINUTE_S

    def count(self, pool: str, tenant: str, amounts: Mapping[str, int]) -> None:
        minute, whose = self.minute, (tenant, pool)
        self._pools[pool].add(minute, amounts)
        own = self._tenants.pop(whose, None) or MinuteCounts(TENANT_MINUTES)
        own.add(minute, amounts)
        self._tenants[whose] = own  # the last one used comes last
        if len(self._tenants) > SERIES_OF_TENANTS:
            del self._tenants[next(iter(self._tenants))]

    def of(self, pool: str, tenant: str | None) -> MinuteCounts:
        """Return a pool's counts, or a tenant's part of them. They are empty where nothing was
        counted."""
        if tenant is None:
            return self._pools.get(pool) or _of_a_pool()
        return self._tenants.get((tenant, pool)) or MinuteCounts(TENANT_MINUTES)

    def by_tenant(self) -> dict[str, dict[str, int]]:
        """The counts of the last TENANT_MINUTES of each tenant that has any, in all pools."""
        sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        minute = self.minute
        for (tenant, _), counts in self._tenants.items():
            if recent := counts.recent(minute):
                sums[tenant].update(recent)
        return {tenant: dict(counts) for tenant, counts in sums.items()}


def _of_a_pool() -> MinuteCounts:
    return MinuteCounts(POOL_MINUTES)
