"""The fleet's plot; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.scale.goals import VARIATION
from benchmarks.scale.results import FleetSummary
from benchmarks.scale.simulate import CONVERSATIONS
from benchmarks.scale.simulate import OURS as OUR_POLICY
from common.svg import LIMIT, OTHERS, OURS, TAIL, drawn
from loadgen.workloads import WORKLOADS

# Distinct for colour-blind readers too.
COLOURS = {
    OUR_POLICY: OURS,
    "random": OTHERS,
    "least_loaded": "#e69f00",
    "consistent_hash": "#009e73",
    "approximate_tree": "#cc79a7",
    "exact_and_load": "#56b4e9",
    "oracle": TAIL,
}


def draw(found: Sequence[FleetSummary], file: Path) -> None:
    """Cached tokens and spread by the number of replicas; times by each trace's load."""
    played = dict.fromkeys(s.case.workload for s in found)
    recorded = [name for name in played if name not in (CONVERSATIONS, *WORKLOADS)]
    with drawn(file, (2.6 * (2 + len(recorded)), 2.9), 1, 2 + len(recorded), top=0.9) as (
        figure,
        (axes,),
    ):
        sizes = [s for s in found if s.case.workload == CONVERSATIONS and s.case.gateways == 1]
        cached, spread, *times = axes
        for policy, colour in COLOURS.items():
            of = sorted((s for s in sizes if s.case.policy == policy), key=_replicas)
            counts = [s.case.replicas for s in of]
            _line(cached, counts, [s.cached_ratio for s in of], colour, policy)
            if policy != "oracle":
                _line(spread, counts, [s.variation_requests for s in of], colour)
            for axis, trace in zip(times, recorded, strict=True):
                at = [s for s in found if (s.case.workload, s.case.policy) == (trace, policy)]
                _line(axis, [s.case.rate for s in at], [s.ttft_mean_s for s in at], colour)
        for axis in (cached, spread):
            axis.set_xscale("log")
            axis.set_xlabel("replicas")
        cached.set_ylim(0, 1)
        cached.set_title("prompt tokens cached")
        spread.set_title("variation of requests")
        spread.axhline(VARIATION, linestyle=":", color=LIMIT)
        for axis, trace in zip(times, recorded, strict=True):
            axis.set_title(f"{trace}:\nmean TTFT, s")
            axis.set_yscale("log")
            axis.set_xlabel("requests/s")
        handles, labels = cached.get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper right", ncols=len(labels), frameon=False)


def _replicas(s: FleetSummary) -> int:
    return s.case.replicas


def _line(
    axis: Any, x: Sequence[float], y: Sequence[float], colour: str, label: str | None = None
) -> None:
    axis.plot(x, y, "o-", color=colour, linewidth=1, markersize=3, label=label)
