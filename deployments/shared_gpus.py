"""The GPUs that the pools of a fleet share, in the process that decides for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from autoscaling.scaling.gpu_budget import GpuRequest, granted_now
from deployments.fleet.fleet import Fleet
from router.redis.redis_keys import BoardName

# A pool removed from the fleet counts until its policy has not asked for this many seconds.
KEEP_S = 10.0


class SharedGpus:
    """The last request of each pool of each fleet, and its time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[str, dict[str, tuple[float, GpuRequest]]] = {}

    def tell(self, board: BoardName, request: GpuRequest) -> None:
        """Count a pool's GPUs, also if its number is fixed."""
        requests = self._requests.setdefault(board.fleet_board, {})
        requests[board.pool] = (self._clock(), request)

    def granted(
        self,
        board: BoardName,
        request: GpuRequest,
        budget: float,
        at_first: Mapping[str, GpuRequest] | None = None,
    ) -> int:
        """Return the pool's replicas within a `budget` of GPUs for all pools of its fleet.

        `at_first`: what each pool of the fleet has before its first request.
        """
        self.tell(board, request)
        now, of_fleet = self._clock(), at_first or {}
        asked = {
            name: last
            for name, (at, last) in self._requests[board.fleet_board].items()
            if name in of_fleet or now - at <= KEEP_S
        }
        return granted_now({**of_fleet, **asked}, board.pool, budget)


def requests_at_first(fleet: Fleet) -> dict[str, GpuRequest]:
    """Return the initial request of each pool with GPUs."""
    found = {}
    for name, pool in fleet.pools.items():
        gpus = pool.world_size if pool.resources.gpus is None else pool.resources.gpus
        if gpus > 0:
            first = pool.first_replicas
            found[name] = GpuRequest(pool.least_replicas, first, first, gpus, current=first)
    return found
