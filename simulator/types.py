"""Input and results of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaling.admission.overflow import OverflowRules
from autoscaling.slo import Slo
from simulator.cache.kv_tiers import TierSettings
from simulator.engines import Hardware
from simulator.fleet import Call
from simulator.traces import Trace


@dataclass(frozen=True)
class OverflowPool:
    hardware: Hardware
    replicas: int
    rules: OverflowRules = field(default_factory=OverflowRules)


@dataclass(frozen=True)
class PrefillPool:
    """Replicas that compute prompts for others, which pull them; see `gateway.PromptPool`."""

    hardware: Hardware
    replicas: int
    tiers: TierSettings
    always: bool = False


@dataclass(frozen=True)
class FleetSettings:
    """One pool; times in seconds. At the start `initial_replicas` serve, or `min_replicas`.

    `batch_slo` is for batch requests, of which `batch_queue` may wait. Each replica has `tiers`;
    those of the overflow pool have none. `prefill` applies to policies with Antefix's routing.
    """

    hardware: Hardware
    startup_s: float
    slo: Slo
    min_replicas: int = 1
    max_replicas: int = 8
    initial_replicas: int | None = None
    warm_replicas: int = 0
    batch_slo: Slo | None = None
    batch_queue: int = 0
    overflow: OverflowPool | None = None
    seed: int = 0
    tiers: TierSettings | None = None
    prefill: PrefillPool | None = None

    @property
    def first_replicas(self) -> int:
        return self.min_replicas if self.initial_replicas is None else self.initial_replicas


@dataclass(frozen=True)
class Sample:
    """Replicas at a time: with a GPU, ready, and active; requests in the pool; and the reason."""

    at: float
    paid: int
    serving: int
    active: int
    target: int
    in_flight: int
    reasons: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """`calls` in the order of arrival, `samples` one per second. `seconds`: until the last
    answer."""

    policy: str
    trace: Trace
    settings: FleetSettings
    calls: tuple[Call, ...]
    samples: tuple[Sample, ...]
    seconds: float
    replica_seconds: float

    @property
    def average_replicas(self) -> float:
        return self.replica_seconds / self.seconds

    @property
    def attainment(self) -> float:
        """Return the share of all requests that the pool served within the SLO."""
        return sum(map(self.attained, self.calls)) / max(1, len(self.calls))

    def attained(self, call: Call) -> bool:
        slo = self.settings.slo
        if call.priority == "batch" and self.settings.batch_slo is not None:
            slo = self.settings.batch_slo
        if call.first_at is None or call.overflowed or call.ttft > slo.ttft_s:
            return False
        return slo.tpot_s is None or call.tpot <= slo.tpot_s
