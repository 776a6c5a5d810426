"""Antefix's autoscaler on a simulated pool: `autoscaling.scaling.scaling.decide`, once a second.

It gets only the data of production, and nothing of the trace: the gateways' counters of a second
ago, the replicas' queues, and the rates that replicas learned.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaling.scaling.rates import rates_of
from autoscaling.scaling.scaling import Limits, Signals, State, decide
from simulator.gateway import ScheduledFleet, SimulatedGateway
from simulator.types import FleetSettings


class AutoscaledGateway(SimulatedGateway):
    """A gateway whose autoscaler decides once a second, on the counters of the previous second."""

    def __init__(self, pool: ScheduledFleet, settings: FleetSettings) -> None:
        super().__init__(pool)
        self._state = State()
        self._startup_s = settings.startup_s
        self._limits = Limits(
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            slo=settings.slo,
            warm_replicas=settings.warm_replicas,
        )
        self._told: dict[str, float] = {}

    def tick(self, now: float) -> Mapping[str, float | str]:
        decision = decide(self._signals(now), self._state, self._limits)
        # stored as JSON between the calls
        self._state = State.from_dict(decision.state.to_dict())
        output_tokens = self._pool.fleet.generated
        counts = self._pool.scheduler.demand
        self._told = {
            "arrived": counts.arrived,
            "rejected": counts.rejected + counts.overflowed,
            "prompt_tokens": counts.prompt_tokens,
            "uncached_tokens": counts.uncached_tokens,
            "output_tokens": output_tokens,
            "told_at": now,
        }
        self.demand(decision.demand)
        self._pool.fleet.scale_to(decision.target, now)
        return decision.reasons

    def _signals(self, now: float) -> Signals:
        fleet = self._pool.fleet
        loads = [replica.load(0) for replica in fleet.serving]
        queued_tokens = sum(load.queue.prefill_tokens for load in loads)
        demand = self._pool.scheduler.refresh_demand()
        return Signals(
            now=now,
            **self._told,
            running=len(loads),
            starting=len(fleet.starting),
            in_flight=sum(load.queue.waiting + load.queue.running for load in loads),
            waiting=demand.waiting,
            queued_tokens=queued_tokens + demand.queued_tokens,
            promoted=self.promoted,
            engine=rates_of(loads),
            startup_s=self._startup_s if loads else None,
        )
