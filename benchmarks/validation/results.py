"""How far a simulation is from what it stands for: figures and goals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.stand import rules
from common.percentiles import P99_SAMPLES, percentile

RULE = rules.of("simulator")
PERCENTS = (50, 90, 99)


@dataclass(frozen=True)
class LoadResult:
    """What came of one load, in reality or in the simulation, in seconds. `sent_late`: of real
    requests, how late each was sent."""

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
    """Of all seeds of a load together."""
    return {
        f"load {load:g}": {
            name: _figures(pooled(of))
            for name, of in (
                ("observed", [one.observed for one in seeds]),
                ("simulated", [one.simulated for one in seeds]),
            )
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
        errors: Mapping[str, list[float]] = {
            "mean": [error(one.observed.mean, one.simulated.mean) for one in seeds],
            **{
                f"p{percent}": [
                    error(one.observed.at(percent), one.simulated.at(percent)) for one in seeds
                ]
                for percent in PERCENTS[:2]
            },
        }
        for name, of in errors.items():
            goal = f"error_of_{name}_ttft"
            judged[f"{goal}_at_load_{load:g}"] = RULE.judged(goal, of)
        seen = pooled([one.observed for one in seeds])
        said = pooled([one.simulated for one in seeds])
        if min(len(seen.ttfts), len(said.ttfts)) >= P99_SAMPLES:
            goal = "error_of_p99_ttft"
            judged[f"{goal}_at_load_{load:g}"] = RULE.judged(
                goal, [error(seen.at(99), said.at(99))]
            )
        goal = "difference_of_refused_share"
        differences = [
            abs(one.observed.refused_share - one.simulated.refused_share) for one in seeds
        ]
        judged[f"{goal}_at_load_{load:g}"] = RULE.judged(goal, differences)
    return judged
