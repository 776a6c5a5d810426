"""The figures that a soak test watches, from outside the fleet.

Private memory, file descriptors and threads of each process; Redis's keys by kind, and its memory;
the gateways' tasks, from their metrics; and what their objects hold (`held_items`).
"""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.fleets.fleet_state import MB, private_mb, replicas_of, role_of
from cli.local import processes
from router.redis import redis_keys

MEMORY, FILES, THREADS = "memory_mb", "file_descriptors", "threads"
PROCESSES, REDIS_KEYS, REDIS_MEMORY = "processes", "redis_keys", "redis_memory_mb"
TASKS, HELD, SERIES = "tasks", "held_items", "metric_series"
POOL = "engine"
SCRAPES, SCRAPE_S, SCRAPE_AGAIN_S = 5, 10.0, 1.0
# What ends with its request.
OF_REQUESTS = (
    "RequestMetrics.under_way",
    "TenantBudgets.admitted",
    "Scope.leases",
    "Transport.holders",
    "Turns.waiting",
    "PoolScheduler.in_flight",
    "PoolScheduler.unassigned",
    "WaitingRoom.queues",
    "LoadBoard.unseen",
)


@dataclass(frozen=True, order=True)
class Figure:
    """One series: its unit, and what it belongs to."""

    unit: str
    whose: str


Sample = dict[Figure, float]


class FleetWatch:
    """Samples one fleet. `client`: its Redis; `held` returns what its gateways hold, by holder."""

    def __init__(
        self, run_id: str, client: Any, metrics_url: str, held: Callable[[], Mapping[str, int]]
    ) -> None:
        self._run_id = run_id
        self._client = client
        self._metrics_url = metrics_url
        self._held = held
        self._holders: set[str] = set()

    def sample(self) -> Sample:
        """Everything now. Raises OSError."""
        redis = of_redis(self._client)
        return {**self.of_processes(), **redis, **self.of_metrics(), **self.of_gateways()}

    def of_gateways(self) -> Sample:
        """A holder that has gone holds 0."""
        held = self._held()
        self._holders |= held.keys()
        return {Figure(HELD, holder): held.get(holder, 0) for holder in self._holders}

    def engines(self) -> list[psutil.Process]:
        """The processes of the pool's replicas."""
        return replicas_of(self._run_id, POOL)

    def of_metrics(self) -> Sample:
        """Asks again where a killed or busy process does not answer. Raises OSError."""
        for _ in range(SCRAPES - 1):
            with contextlib.suppress(OSError):
                return self._scraped()
            time.sleep(SCRAPE_AGAIN_S)
        return self._scraped()

    def _scraped(self) -> Sample:
        with urllib.request.urlopen(self._metrics_url, timeout=SCRAPE_S) as answer:
            return of_exposition(answer.read().decode())

    def of_processes(self) -> Sample:
        found: Sample = {}
        alive = processes.processes(self._run_id)
        for process in alive:
            try:
                whose = f"{role_of(process)} {process.pid}"
                found[Figure(MEMORY, whose)] = private_mb(process)
                found[Figure(FILES, whose)] = process.num_fds()
                found[Figure(THREADS, whose)] = process.num_threads()
            except psutil.Error:  # it ended meanwhile
                continue
        return {**found, Figure(PROCESSES, "all"): len(alive)}


def of_redis(client: Any) -> Sample:
    """Keys by kind, and memory."""
    kinds: Counter[str] = Counter()
    for key in client.scan_iter(count=1000):
        kinds[redis_keys.kind_of(key.decode(errors="replace"))] += 1
    found: Sample = {Figure(REDIS_KEYS, kind): count for kind, count in kinds.items()}
    found[Figure(REDIS_MEMORY, "all")] = client.info("memory")["used_memory"] / MB
    return found


def of_exposition(text: str) -> Sample:
    """The gateways of a node together."""
    found: Sample = {}
    series = 0
    for family in text_string_to_metric_families(text):
        series += len(family.samples)
        for sample in family.samples:
            if sample.name == "antefix_asyncio_tasks":
                found[Figure(TASKS, "gateways")] = sample.value
    found[Figure(SERIES, "of the node")] = series
    return found
