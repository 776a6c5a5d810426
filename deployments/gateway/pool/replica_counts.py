"""How many replicas a pool has in which state, and how many there should be."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.gateway.pool.pool import GatewayPool

_NOT_STARTING = ("RUNNING", "STOPPING", "PENDING_MIGRATION")


def replica_counts(
    pool: GatewayPool, states: Mapping[str, Mapping[str, int]]
) -> tuple[dict[str, int], int]:
    """Replicas by the states of the metric `antefix_replicas`, and how many there should be.

    `states` is as in `serve_controller.Status`.
    """
    board, serves = pool.scheduler.board, states.get(pool.name, {})
    warm = board.warm().values()
    asleep = sum(load.asleep for load in warm)
    counts = {
        "active": len(board.loads()),
        "warm": len(warm) - asleep,
        "asleep": asleep,
        "leaving": len(board.leaving()),
        "starting": sum(n for state, n in serves.items() if state not in _NOT_STARTING),
        "stopping": serves.get("STOPPING", 0),
    }
    decided = pool.decided
    return counts, decided.target if decided else target_replicas(pool, serves)


def target_replicas(pool: GatewayPool, states: Mapping[str, int]) -> int:
    """How many there should be; with autoscaling, as many as there are or are coming."""
    if pool.settings.autoscaling is None:
        return pool.settings.first_replicas
    there = sum(count for state, count in states.items() if state != "STOPPING")
    return max(least_replicas(pool), there)


def least_replicas(pool: GatewayPool) -> int:
    autoscaling = pool.settings.autoscaling
    return autoscaling.min_replicas if autoscaling else pool.settings.first_replicas
