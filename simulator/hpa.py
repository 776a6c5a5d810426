"""Kubernetes' HorizontalPodAutoscaler, from its documentation and source, for comparison.

It is pure except for its memory; times are the caller's seconds. Documentation:
kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale, the sections "Algorithm details"
and "Configurable scaling behavior". Source: pkg/controller/podautoscaler in kubernetes/kubernetes
(1.34): `replica_calculator.go` for the result of a metric, `horizontal.go` for the speed of
changes. Names are those of the source: a policy limits the change within a period, rules are a
stabilization window and policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# --horizontal-pod-autoscaler-sync-period and --horizontal-pod-autoscaler-tolerance
SYNC_PERIOD_S = 15.0
TOLERANCE = 0.1


@dataclass(frozen=True)
class ScalingPolicy:
    """A limit of this many pods, or percent of them, within `period_s`."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_s: float

    def most(self, at_begin: int) -> int:
        """Return the maximum after the period, from the number at its start."""
        if self.kind == "Pods":
            return at_begin + self.value
        # integers: with floats, 100 times 1.1 would round up to 111
        return -(-at_begin * (100 + self.value) // 100)

    def least(self, at_begin: int) -> int:
        """Return the minimum after the period; a fraction of a pod counts as a whole one."""
        if self.kind == "Pods":
            return at_begin - self.value
        return at_begin * (100 - self.value) // 100


@dataclass(frozen=True)
class ScalingRules:
    """Rules. If several policies apply, the one that allows the greatest change counts
    (selectPolicy: Max)."""

    stabilization_s: float
    policies: tuple[ScalingPolicy, ...]


SCALE_UP = ScalingRules(0.0, (ScalingPolicy("Percent", 100, 15.0), ScalingPolicy("Pods", 4, 15.0)))
SCALE_DOWN = ScalingRules(300.0, (ScalingPolicy("Percent", 100, 15.0),))


def desired_by_pods(current: int, metrics: Sequence[float], missing: int, target: float) -> int:
    """Return the replicas by a metric of each pod and its average target (`type: Pods`).

    `metrics` come from reporting pods; `missing` pods run but do not report, like engines that
    load. They count as 0 when scaling up, and as the target when scaling down. If this reverses the
    direction, or stays within the tolerance, nothing changes; the same without any metric.
    """
    if not metrics:
        return current
    ratio = sum(metrics) / len(metrics) / target
    if not missing:
        return current if _tolerated(ratio) else _ceil(ratio * len(metrics))
    filled = sum(metrics) + (missing * target if ratio < 1.0 else 0.0)
    pods = len(metrics) + missing
    refilled = filled / pods / target
    if _tolerated(refilled) or (ratio < 1.0) != (refilled < 1.0):
        return current
    desired = _ceil(refilled * pods)
    return current if (refilled < 1.0) != (desired < current) else desired


def desired_by_total(current: int, total: float, target: float) -> int:
    """Return the replicas by one total metric and an average target (`type: External`,
    `AverageValue`), as in KEDA. Readiness does not matter."""
    if current and _tolerated(total / (target * current)):
        return current
    return _ceil(total / target)


def _tolerated(ratio: float) -> bool:
    return abs(1.0 - ratio) <= TOLERANCE


def _ceil(replicas: float) -> int:
    # 8 * 1.1 / 1.1 must be 8, not 9
    return math.ceil(replicas - 1e-9)


class HorizontalPodAutoscaler:
    """Stabilize a desired number of replicas, then limit it by the policies.

    Scaling up uses the lowest desired number within its window, scaling down the highest within its
    own. The initial number counts as desired at the start.
    """

    def __init__(
        self,
        min_replicas: int,
        max_replicas: int,
        up: ScalingRules = SCALE_UP,
        down: ScalingRules = SCALE_DOWN,
    ) -> None:
        self._least, self._most = min_replicas, max_replicas
        self._up, self._down = up, down
        self._desired: list[tuple[float, int]] = []
        # time and size of each change; a removal is negative
        self._changes: list[tuple[float, int]] = []

    def replicas(self, current: int, desired: int, now: float) -> int:
        """Return the new number of replicas from `current`; called every SYNC_PERIOD_S."""
        if not self._desired:
            self._desired.append((now, current))
        stable = self._stabilized(current, desired, now)
        self._desired.append((now, desired))
        after = self._limited(current, stable, now)
        if after != current:
            self._changes.append((now, after - current))
        self._forget(now)
        return after

    def _stabilized(self, current: int, desired: int, now: float) -> int:
        up = min([desired, *self._within(self._up.stabilization_s, now)])
        down = max([desired, *self._within(self._down.stabilization_s, now)])
        return min(max(current, up), down)

    def _within(self, window_s: float, now: float) -> list[int]:
        return [desired for at, desired in self._desired if at > now - window_s]

    def _limited(self, current: int, desired: int, now: float) -> int:
        if not self._least <= current <= self._most:
            return min(max(current, self._least), self._most)
        if desired > current:
            allowed = max(p.most(self._begin(current, p, now)) for p in self._up.policies)
            return min(desired, self._most, max(current, allowed))
        if desired < current:
            allowed = min(p.least(self._begin(current, p, now)) for p in self._down.policies)
            return max(desired, self._least, min(current, allowed))
        return current

    def _begin(self, current: int, policy: ScalingPolicy, now: float) -> int:
        """Return the number at the start of the policy's period."""
        return current - sum(by for at, by in self._changes if at > now - policy.period_s)

    def _forget(self, now: float) -> None:
        window_s = max(self._up.stabilization_s, self._down.stabilization_s)
        period_s = max(p.period_s for p in (*self._up.policies, *self._down.policies))
        self._desired = [(at, n) for at, n in self._desired if at > now - window_s] or [
            self._desired[-1]
        ]
        self._changes = [(at, by) for at, by in self._changes if at > now - period_s]
