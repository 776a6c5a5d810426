"""Ray Serve's default autoscaler on a simulated pool, for comparison.

The autoscaler is Ray Serve's code, including its averages: `DeploymentAutoscalingState` with an
`AutoscalingConfig` of default values except the bounds, on the simulation's clock. A handle records
its requests every 6 s and reports them every 10 s, like the real one. The controller is called once
a second instead of ten times, which lengthens its delays of 30 and 600 s by at most a second. Its
routing is that of simulator/peers.py.

Idealizations: those of peers.py (a removed replica really has 20 s to finish). A replica also may
have the number of requests that its engine runs at once (the default is 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from ray.serve import autoscaling_policy
from ray.serve._private import autoscaling_state
from ray.serve._private.common import (
    RUNNING_REQUESTS_KEY,
    DeploymentHandleSource,
    DeploymentID,
    HandleMetricReport,
    ReplicaID,
    TimeStampedValue,
)
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.constants import (
    DEFAULT_TARGET_ONGOING_REQUESTS,
    RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR,
)
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve._private.metrics_utils import QUEUED_REQUESTS_KEY, InMemoryMetricsStore
from ray.serve.config import AutoscalingConfig

from simulator.fleet import SimulatedFleet
from simulator.types import FleetSettings

TARGET_ONGOING_REQUESTS = float(DEFAULT_TARGET_ONGOING_REQUESTS)
# With a clock that starts at 0, its first times would count as missing.
EPOCH = 1_000_000.0


class ServeDefaultAutoscaler:
    """The autoscaler, called once a second. Times are the simulation's seconds."""

    def __init__(self, of: FleetSettings, target_ongoing_requests: float) -> None:
        self._config = AutoscalingConfig(
            min_replicas=of.min_replicas,
            max_replicas=of.max_replicas,
            initial_replicas=of.first_replicas,
            target_ongoing_requests=target_ongoing_requests,
        )
        self._deployment = DeploymentID("pool", "backtest")
        self._state = autoscaling_state.DeploymentAutoscalingState(self._deployment)
        settings = DeploymentConfig(autoscaling_config=self._config)
        no_code = cast(ReplicaConfig, None)
        self._target = self._state.register(
            DeploymentInfo(settings, no_code, start_time_ms=0, deployer_job_id=""),
            of.first_replicas,
        )
        self._notes: Any = cast(Any, InMemoryMetricsStore)()
        self._note_every_s = min(
            self._config.look_back_period_s * RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR,
            self._config.metrics_interval_s,
        )
        self._next_note_at = self._next_report_at = 0.0

    def scale(self, fleet: SimulatedFleet, queued: int, now: float) -> None:
        serving = {replica.name: replica.requests for replica in fleet.serving}
        fleet.scale_to(self.target(queued, serving, now), now)

    def target(self, queued: int, serving: Mapping[str, int], now: float) -> int:
        """Return the target number of replicas. `serving`: the requests in each replica."""
        wall = EPOCH + now
        if now >= self._next_note_at:
            self._next_note_at += self._note_every_s
            self._notes.add_metrics_point({QUEUED_REQUESTS_KEY: queued, **serving}, wall)
        if now >= self._next_report_at:
            self._next_report_at += self._config.metrics_interval_s
            self._report(queued, serving, wall)
        self._state.update_running_replica_ids([self._id(name) for name in serving])
        clock = SimpleNamespace(time=lambda: wall, monotonic=lambda: wall)
        with (
            mock.patch.object(autoscaling_state, "time", clock),
            mock.patch.object(autoscaling_policy, "time", clock),
        ):
            self._target = self._state.get_decision_num_replicas(self._target)
        return self._target

    def _report(self, queued: int, serving: Mapping[str, int], wall: float) -> None:
        self._notes.prune_keys_and_compact_data(wall - self._config.look_back_period_s)
        noted = self._notes.data
        self._state.record_request_metrics_for_handle(
            HandleMetricReport(
                deployment_id=self._deployment,
                handle_id="handle",
                actor_id="",
                handle_source=DeploymentHandleSource.UNKNOWN,
                queued_requests=noted.get(QUEUED_REQUESTS_KEY, [TimeStampedValue(wall, queued)]),
                metrics={
                    RUNNING_REQUESTS_KEY: {
                        self._id(name).to_full_id_str(): noted.get(
                            name, [TimeStampedValue(wall, requests)]
                        )
                        for name, requests in serving.items()
                    }
                },
                timestamp=wall,
            )
        )

    def _id(self, name: str) -> ReplicaID:
        return ReplicaID(name, self._deployment)
