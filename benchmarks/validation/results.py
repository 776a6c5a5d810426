"""How far a simulation is from real engines: figures and goals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.results import rules
from common.percentiles import P99_SAMPLES, percentile

RULE = rules.of("simulator")
PERCENTS = (50, 90, 99)


@dataclass(frozen=True)
class LoadResult:
    """The outcome of one load, real or simulated, in seconds. `sent_late`: of real requests."""

    ttfts: tuple[float, ...]
    refused: int
    sent_late: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return sum(self.ttfts) / max(1, len(self.ttfts))

    @property
    def refused_share(self) -> float:
        return self.refused / max(1, self.refused + len(self.ttfts))

    def at(self, percent: float) -> float:
        return percentile(self.ttfts, percent)


@dataclass(frozen=True)
class ComparedLoad:
    """One load with one seed."""

    load: float
    seed: int
    observed: LoadResult
    simulated: LoadResult


def pooled(of: Sequence[LoadResult]) -> LoadResult:
    return LoadResult(
        tuple(ttft for one in of for ttft in one.ttfts),
        sum(one.refused for one in of),
        tuple(late for one in of for late in one.sent_late),
    )


def error(observed: float, simulated: float) -> float:
    return abs(simulated - observed) / observed


def by_load(found: Sequence[ComparedLoad]) -> dict[float, list[ComparedLoad]]:
    loads: dict[float, list[ComparedLoad]] = {}
    for one in found:
        loads.setdefault(one.load, []).append(one)
    return loads


def figures(found: Sequence[ComparedLoad]) -> dict[str, Any]:
    """Return the figures of each load, over all its seeds together."""
    return {
        f"load {load:g}": {
            "observed": _figures(pooled([one.observed for one in seeds])),
            "simulated": _figures(pooled([one.simulated for one in seeds])),
        }
        for load, seeds in by_load(found).items()
    }


def _figures(of: LoadResult) -> dict[str, Any]:
    percents = PERCENTS if len(of.ttfts) >= P99_SAMPLES else PERCENTS[:2]
    return {
        "served": len(of.ttfts),
        "refused": of.refused,
        "ttft_mean_s": round(of.mean, 3),
        **{f"ttft_p{percent}_s": round(of.at(percent), 3) for percent in percents},
    }


def goals(found: Sequence[ComparedLoad]) -> dict[str, Any]:
    """Errors seed by seed; that of a p99 of all seeds together."""
    judged: dict[str, Any] = {}
    for load, seeds in by_load(found).items():
        pairs = [(one.observed, one.simulated) for one in seeds]
        errors = {"error_of_mean_ttft": [error(real.mean, sim.mean) for real, sim in pairs]}
        for percent in PERCENTS[:2]:
            errors[f"error_of_p{percent}_ttft"] = [
                error(real.at(percent), sim.at(percent)) for real, sim in pairs
            ]
        real, sim = (pooled(of) for of in zip(*pairs, strict=True))
        if min(len(real.ttfts), len(sim.ttfts)) >= P99_SAMPLES:
            errors["error_of_p99_ttft"] = [error(real.at(99), sim.at(99))]
        errors["difference_of_refused_share"] = [
            abs(real.refused_share - sim.refused_share) for real, sim in pairs
        ]
        for goal, of in errors.items():
            judged[f"{goal}_at_load_{load:g}"] = RULE.judged(goal, of)
    return judged
