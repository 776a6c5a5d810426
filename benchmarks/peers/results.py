"""The requests of all runs as figures and goals. Pure.

A run is one case behind one router with one seed. Routers are compared seed by seed, since a seed
is the same requests for all: a ratio is the median of the seeds' ratios, with their range. A figure
of one router is the median of its runs.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.load.pace import LATE_S
from benchmarks.harness.results import rules
from benchmarks.peers.cases import CASES
from benchmarks.peers.routers import OURS, ROUTERS
from common.percentiles import percentile
from loadgen.player import SentRequest
from loadgen.summary import cached_ratio, distribution, e2e_s, late_s, ttft_s

RULE = rules.of("peers")
# The least cached share of a prompt's tokens; those of a chat template are the same for all.
LEAST_CACHED = 0.01


@dataclass(frozen=True)
class PeerRun:
    """Times in seconds, of requests that were answered. `cached_ratio`: of their prompts' tokens.
    `cpu_s`: of the router's processes. `failure`: the message of the first of the `failed`. `on`:
    the machine, in words. `e2e_mean`: until an answer ended. `sent_late_p90`: how late the client
    sent requests."""

    case: str
    router: str
    seed: int
    requests: int
    failed: int
    failure: str
    ttft_mean: float
    ttft_p90: float
    cached_ratio: float
    cpu_s: float
    on: str
    commit: str
    e2e_mean: float
    sent_late_p90: float

    @property
    def cpu_ms_a_request(self) -> float:
        return 1000 * self.cpu_s / self.requests


@dataclass(frozen=True)
class Unmeasured:
    """A run without a figure, and why. A peer's failure does not end the other runs."""

    case: str
    router: str
    seed: int
    why: str


def run_of(
    case: str,
    router: str,
    seed: int,
    sent: Sequence[SentRequest],
    *,
    cpu_s: float,
    on: str,
    commit: str,
) -> PeerRun:
    """Raises RuntimeError where no request was answered, or none says what was cached."""
    failed = [request for request in sent if request.error is not None]
    failure = f"{failed[0].error}: {failed[0].reason}" if failed else ""
    whole = [request for request in sent if request.error is None]
    ttft = distribution(map(ttft_s, whole))
    cached = cached_ratio(whole)
    if ttft is None or cached is None:
        raise RuntimeError(f"{case} behind {router}: {failure or 'no answer says what was cached'}")
    return PeerRun(
        case=case,
        router=router,
        seed=seed,
        requests=len(sent),
        failed=len(failed),
        failure=failure,
        ttft_mean=ttft["mean"],
        ttft_p90=ttft["p90"],
        cached_ratio=cached,
        cpu_s=cpu_s,
        on=on,
        commit=commit,
        e2e_mean=statistics.fmean(map(e2e_s, whole)),
        sent_late_p90=percentile(map(late_s, sent), 90),
    )


Runs = Mapping[tuple[str, str], Sequence[PeerRun]]
"""By case and router."""


def grouped(runs: Sequence[PeerRun]) -> Runs:
    """In the order of the runs."""
    found: dict[tuple[str, str], list[PeerRun]] = defaultdict(list)
    for run in runs:
        found[run.case, run.router].append(run)
    return found


def seeds(runs: Runs) -> list[int]:
    """The seeds of all runs, in order."""
    return sorted({run.seed for of in runs.values() for run in of})


# The subjects of goals. Smaller is better for each, hence uncached tokens instead of cached ones.
JUDGED: Mapping[str, Callable[[PeerRun], float]] = {
    "mean_ttft": lambda run: run.ttft_mean,
    "p90_ttft": lambda run: run.ttft_p90,
    "uncached": lambda run: 1 - run.cached_ratio,
}


def ratios(runs: Runs, case: str, router: str, judged: str) -> list[float]:
    """Antefix's figure, divided by another router's, for each seed that both have."""
    ours, theirs = (
        {run.seed: JUDGED[judged](run) for run in runs.get((case, name), ())}
        for name in (OURS, router)
    )
    return [_by(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def _by(ours: float, theirs: float) -> float:
    if not theirs:  # all was cached
        return 1.0 if not ours else float("inf")
    return ours / theirs


def hardest(runs: Runs, case: str, judged: str) -> tuple[str, list[float]] | None:
    """The best other router by the median, and its ratios. Those with separate engines, which are
    not like for like, are left out."""
    beside = {
        router: found
        for of, router in runs
        if of == case and router != OURS and not ROUTERS[router].has_engines
        if (found := ratios(runs, case, router, judged))
    }
    return max(beside.items(), key=lambda pair: statistics.median(pair[1])) if beside else None


def is_vacuous(runs: Runs, case: str, judged: str) -> bool:
    """Whether routers cannot differ, because no request of any found cached tokens."""
    of_case = [run for (name, _), of in runs.items() if name == case for run in of]
    return judged == "uncached" and all(run.cached_ratio < LEAST_CACHED for run in of_case)


def goals(runs: Runs) -> dict[str, Any]:
    """Antefix divided by the best other, as the median of the seeds (`goals.yaml`). No request of
    Antefix may fail."""
    judged: dict[str, Any] = {}
    for case in dict.fromkeys(case for case, _ in runs):
        bound = RULE.bounds["router_knows" if CASES[case].says else "usual"]
        for name in JUDGED:
            found = hardest(runs, case, name)
            if found is None or is_vacuous(runs, case, name):
                continue
            router, by_it = found
            goal = {**rules.judged(by_it, bound), "other": router}
            judged[f"{case}_{name}_by_best_other"] = goal
    failed = sum(run.failed for (_, router), of in runs.items() if router == OURS for run in of)
    return {**judged, "failed": RULE.judged("failed", [failed])}


def figures(runs: Runs) -> dict[str, Any]:
    """For the line of JSON: medians, and the figures of each seed."""

    def ours_by_it(case: str, router: str) -> dict[str, float]:
        found = {name: ratios(runs, case, router, name) for name in JUDGED}
        return {name: round(statistics.median(of), 4) for name, of in found.items() if of}

    return {
        f"{case}/{router}": {
            "requests": sum(run.requests for run in of),
            "failed": sum(run.failed for run in of),
            **{
                f"{name}_ms": [round(1000 * getattr(run, name), 1) for run in of]
                for name in ("ttft_mean", "ttft_p90", "e2e_mean", "sent_late_p90")
            },
            "cached_ratio": [round(run.cached_ratio, 4) for run in of],
            "cpu_ms_a_request": round(statistics.median(run.cpu_ms_a_request for run in of), 2),
            **({} if router == OURS else {"ours_by_it": ours_by_it(case, router)}),
        }
        for (case, router), of in runs.items()
    }


def note(runs: Runs, unmeasured: Sequence[Unmeasured] = ()) -> dict[str, str]:
    """For the page: in how many runs the load generator was late, and which runs have no figure.
    Empty if there is nothing to note."""
    all_late = [run.sent_late_p90 for of in runs.values() for run in of]
    late = [seconds for seconds in all_late if seconds > LATE_S]
    notes = [
        f"{one.case} behind {one.router} was not measured with seed {one.seed}: {one.why}"
        for one in unmeasured
    ]
    if late:
        notes.append(
            f"the load generator was late in {len(late)} of {len(all_late)} runs, by up to"
            f" {max(late):.2f} s at p90"
        )
    return {"note": "; ".join(notes)} if notes else {}
