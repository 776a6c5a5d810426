"""The usual autoscalers on Kubernetes, on a simulated pool: HPA and KEDA.

    hpa-waiting:T      HPA on vLLM's `num_requests_waiting`, T the average per pod (`type: Pods`)
    hpa-concurrency:T  HPA on the requests in a pod, waiting or running
    keda-waiting:T     KEDA's Prometheus scaler on their sums, T its threshold
    keda-concurrency:T

KEDA (keda.sh/docs, "Scaling Deployments" and the ScaledObject's specification) gives an HPA an
external metric with an average target, read at every sync. KEDA itself scales only between zero and
one replica. Every `pollingInterval` it checks whether the metric is above `activationThreshold`,
and it removes the last replica `cooldownPeriod` after the metric last was.

Idealizations: metrics are current, while Prometheus' are up to a scrape's interval old (15 to 60
s). Requests that wait in a gateway count like those in the pods.
"""

from __future__ import annotations

import math

from simulator.fleet import Replica, SimulatedFleet
from simulator.hpa import (
    SYNC_PERIOD_S,
    HorizontalPodAutoscaler,
    desired_by_pods,
    desired_by_total,
)
from simulator.peers import Autoscaler
from simulator.types import FleetSettings

METRICS = ("waiting", "concurrency")
# KEDA's defaults
POLLING_INTERVAL_S = 30.0
COOLDOWN_PERIOD_S = 300.0
ACTIVATION_THRESHOLD = 0.0


def autoscaler(policy: str, settings: FleetSettings) -> Autoscaler | None:
    """Return the autoscaler of a policy as above; None for another. Raises ValueError for an HPA
    without a replica."""
    name, _, target = policy.partition(":")
    kind, _, metric = name.partition("-")
    if kind not in ("hpa", "keda") or metric not in METRICS or not is_target(target):
        return None
    if kind == "keda":
        return Keda(metric, float(target), settings)
    if settings.first_replicas == 0:
        raise ValueError(
            f"{policy} never starts the first replica: set --initial-replicas to 1 or more"
        )
    return Hpa(metric, float(target), settings)


def is_target(told: str) -> bool:
    try:
        return 0.0 < float(told) < math.inf
    except ValueError:
        return False


class Hpa:
    def __init__(self, metric: str, target: float, of: FleetSettings) -> None:
        # without an alpha feature gate the minimum is 1
        self._hpa = HorizontalPodAutoscaler(max(1, of.min_replicas), of.max_replicas)
        self._metric, self._target = metric, target
        self._next_sync_at = 0.0

    def scale(self, fleet: SimulatedFleet, queued: int, now: float) -> None:
        current = len(fleet.serving) + len(fleet.starting)
        # at 0 replicas it is switched off
        if now < self._next_sync_at or not current:
            return
        self._next_sync_at = now + SYNC_PERIOD_S
        fleet.scale_to(self._hpa.replicas(current, self._desired(fleet, queued, current), now), now)

    def _desired(self, fleet: SimulatedFleet, queued: int, current: int) -> int:
        serving = fleet.serving
        metrics = [_of_pod(self._metric, replica) + queued / len(serving) for replica in serving]
        return desired_by_pods(current, metrics, len(fleet.starting), self._target)


class Keda(Hpa):
    def __init__(self, metric: str, target: float, of: FleetSettings) -> None:
        super().__init__(metric, target, of)
        self._to_zero = of.min_replicas == 0
        self._next_poll_at = self._active_at = 0.0

    def scale(self, fleet: SimulatedFleet, queued: int, now: float) -> None:
        if self._to_zero and now >= self._next_poll_at:
            self._next_poll_at = now + POLLING_INTERVAL_S
            self._activate(fleet, self._total(fleet, queued) > ACTIVATION_THRESHOLD, now)
        super().scale(fleet, queued, now)

    def _activate(self, fleet: SimulatedFleet, active: bool, now: float) -> None:
        replicas = len(fleet.serving) + len(fleet.starting)
        if active:
            self._active_at = now
            fleet.scale_to(max(1, replicas), now)
        elif replicas and now - self._active_at >= COOLDOWN_PERIOD_S:
            fleet.scale_to(0, now)

    def _desired(self, fleet: SimulatedFleet, queued: int, current: int) -> int:
        return desired_by_total(current, self._total(fleet, queued), self._target)

    def _total(self, fleet: SimulatedFleet, queued: int) -> float:
        return queued + sum(_of_pod(self._metric, replica) for replica in fleet.serving)


def _of_pod(metric: str, replica: Replica) -> int:
    return replica.engine.unscheduled if metric == "waiting" else replica.requests
