"""What the backtest plays: traces on pools, under policies. Pure except for recorded traces."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaling.slo import Slo
from benchmarks.harness.results import public_data, rules
from simulator import traces
from simulator.engine_profile import EngineProfile
from simulator.simulation import WITH_ANTEFIX_ROUTING
from simulator.traces import Trace
from simulator.types import FleetSettings

RULE = rules.of("backtest")
OURS, SERVE, SERVE_OURS = "antefix", "serve-default", f"serve-default{WITH_ANTEFIX_ROUTING}"
WARM, WARM_2 = f"{OURS}, 1 warm", f"{OURS}, 2 warm"
KEPT_WARM = {WARM: 1, WARM_2: 2}
# All replicas from when load first rises. A policy that scales up before may do better.
ALL_AT, FIXED = "all-at", "fixed"
# In a result, next to the traces' names.
ALL = "all"
_SWEPT = tuple(
    f"hpa-{metric}:{target:g}"
    for metric in ("concurrency", "waiting")
    for target in RULE.settings[f"{metric}_targets"]
)
KUBERNETES = (*_SWEPT, *RULE.settings["keda"])
KUBERNETES_OURS = tuple(f"{policy}{WITH_ANTEFIX_ROUTING}" for policy in _SWEPT)
SERVE_TARGETS = tuple(f"{SERVE}:{target}" for target in RULE.settings["serve_targets"])
PLOTTED = (OURS, SERVE, "hpa-concurrency:4")
MOONCAKE, AZURE = "mooncake", "azure x 2"


@dataclass(frozen=True)
class PlayedPool:
    """SLO in seconds, and how many replicas there may be."""

    ttft_slo: float = 3.0
    min_replicas: int = 2
    max_replicas: int = 8
    initial_replicas: int = 2

    def settings(self, engine: EngineProfile, seed: int) -> FleetSettings:
        return FleetSettings(
            hardware=engine.hardware,
            startup_s=engine.startup_s,
            slo=Slo(self.ttft_slo),
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            initial_replicas=self.initial_replicas,
            seed=seed,
        )


POOLS: Mapping[str, PlayedPool] = {
    **{name: PlayedPool() for name in traces.SYNTHETIC},
    # load does not start at 0, so the fleet has some size already
    "noise": PlayedPool(initial_replicas=4),
    # Mooncake's SLO, for long prompts
    MOONCAKE: PlayedPool(ttft_slo=30.0, max_replicas=16, initial_replicas=8),
    AZURE: PlayedPool(initial_replicas=4),
}


@dataclass(frozen=True)
class Scenario:
    """A trace on a pool. `seed`: of the trace and of all random choices; 0 for a recorded trace.
    `more_at`: the second in which load first rises; 0 where that is not known."""

    name: str
    seed: int
    trace: Trace
    more_at: int = 0

    @property
    def pool(self) -> PlayedPool:
        return POOLS[self.name]


def keys(seeds: Sequence[int], with_recorded: bool) -> list[tuple[str, int]]:
    """Scenarios by name and seed; those of one name follow each other."""
    of = [(name, seed) for name in traces.SYNTHETIC for seed in seeds]
    return of + ([(MOONCAKE, 0), (AZURE, 0)] if with_recorded else [])


@functools.lru_cache(2)  # a trace is played under all policies in a row
def scenario(name: str, seed: int) -> Scenario:
    """Raises Problem when a recorded trace is unavailable."""
    if name in traces.SYNTHETIC:
        trace = traces.synthetic(name, seed)
        return Scenario(name, seed, trace, traces.rises_at(name, seed))
    if name == MOONCAKE:
        return Scenario(name, seed, traces.read(public_data.find(public_data.CONVERSATION_TRACE)))
    azure = traces.read(public_data.find(public_data.AZURE_TRACE))
    return Scenario(name, seed, azure.scaled(2.0))


def policies(name: str) -> tuple[str, ...]:
    return (
        *(OURS, WARM, WARM_2, SERVE, SERVE_OURS),
        *(*SERVE_TARGETS, *KUBERNETES, *KUBERNETES_OURS),
        *(ALL_AT, f"{FIXED}:{POOLS[name].max_replicas}"),
    )


def as_played(policy: str, of: Scenario, engine: EngineProfile) -> tuple[FleetSettings, str]:
    """The pool's settings and the simulation's policy of that name."""
    settings = of.pool.settings(engine, of.seed)
    if policy in KEPT_WARM:
        return replace(settings, warm_replicas=KEPT_WARM[policy]), OURS
    return settings, f"{ALL_AT}:{of.more_at}" if policy == ALL_AT else policy
