"""A simulated fleet, and replicas of another pool that compute prompts for it, as one fleet."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.fleet import Progress, Replica, SimulatedFleet


class SplitFleet:
    """A `simulation.FleetInPlay`. Only the replicas that answer count as serving; all are paid for.

    A `SimulatedGateway` advances the replicas for prompts.
    """

    def __init__(self, answering: SimulatedFleet, prompts: SimulatedFleet) -> None:
        self._answering = answering
        self._prompts = prompts

    @property
    def serving(self) -> Sequence[Replica]:
        return self._answering.serving

    @property
    def starting(self) -> Sequence[Replica]:
        return self._answering.starting

    @property
    def paid(self) -> int:
        return self._answering.paid + self._prompts.paid

    @property
    def requests(self) -> int:
        return self._answering.requests + self._prompts.requests

    @property
    def next_ready_at(self) -> float | None:
        return self._answering.next_ready_at

    @property
    def next_change_at(self) -> float | None:
        changes = self._answering.next_change_at, self._prompts.next_change_at
        return min((at for at in changes if at is not None), default=None)

    def advance(self, now: float) -> Progress:
        return self._answering.advance(now)

    def replica_seconds(self, now: float) -> float:
        return self._answering.replica_seconds(now) + self._prompts.replica_seconds(now)
