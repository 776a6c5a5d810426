"""The rates of one replica, from the reports of a pool's replicas. Nothing here raises."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from autoscaling.scaling.capacity import EngineRates
from router.board.load import ReplicaLoad


def rates_of(loads: Iterable[ReplicaLoad]) -> EngineRates:
    """Return the rates of a pool, whose engines are alike: each is the mean of the replicas that
    know it."""
    replicas = list(loads)

    def mean(values: Iterable[float]) -> float | None:
        known = [value for value in values if value > 0]
        return fmean(known) if known else None

    return EngineRates(
        prefill_rate=mean(load.pace.prefill_rate for load in replicas if load.pace.prefill_learned),
        step_s=mean(load.pace.step_s for load in replicas),
        sequence_s=mean(load.pace.sequence_s for load in replicas),
        max_sequences=mean(load.max_sequences for load in replicas),
        kv_capacity_tokens=mean(load.cache.capacity_tokens for load in replicas),
    )
