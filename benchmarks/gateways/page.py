"""docs/benchmarks/gateways.md and its plot; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gateways.results import VARIATION_GOAL, GatewaysSummary, table
from benchmarks.stand import report
from common.svg import LIMIT, OTHERS, OURS, TAIL, drawn
from simulator.engines import Hardware


def page(
    found: Sequence[GatewaysSummary],
    goals: Mapping[str, Any],
    command: str,
    minutes: float,
    replicas: int,
    budget_ms: float,
    machine: str,
) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    engine = Hardware()
    return f"""\
# Many gateways over one index

`{command}`: {minutes:.0f} minutes,
{machine}

One gateway process, then more, place the same requests on {replicas} simulated engines; each
request comes to a random gateway. Redis, the engines' publishers and the gateways' schedulers are
the real ones. Last, as many gateways without a shared index: each knows of prefixes only what it
placed itself (which it remembers for good), while loads are still told to all.

![Cached tokens and spread of load by number of gateways](gateways.svg)

{table(found)}

## Goals

{report.goal_table(goals)}

## How to read this

- **Cached**: prompt tokens that the engines found in their caches, over all. *Of ceiling*: over
  what caches that forget nothing and are shared by all replicas would have had.
- **CoV**: the coefficient of variation over the replicas, of the requests each served, of the
  prompt tokens each had to compute, and of the requests it had in flight on average.
- **No answer**: lookups without a reply in time; those requests were placed by load. A lookup has
  {budget_ms:g} ms here, a fleet's default is 5: that all these processes share a few cores is no
  property of the index (`make bench-index` has its times).
  *Late*: how late arrivals and engine steps were, by the worse of their tails. A *tail* is the p99
  of 300 samples or more, and the p90 of fewer. Where lateness
  comes near an engine's step, the machine was too busy for the run to mean anything.
- **The engines** compute nothing. A step takes {1000 * engine.step_s:g} ms, and
  {1000 * engine.sequence_s:g} ms more for each request that decodes in it; prompts take a second
  for {engine.prefill_rate:,.0f} tokens. The cache holds {engine.block_tokens * engine.blocks:,}
  tokens in blocks of {engine.block_tokens} (`simulator/engines.py`).
- **The traffic**: `benchmarks/stand/arrivals.py`; open loop, the first seconds do not count.
"""


def draw(found: Sequence[GatewaysSummary], file: Path) -> None:
    """Write the plot to `file`."""
    shared = [s for s in found if s.shared]
    own = [s for s in found if not s.shared]
    with drawn(file, (6.6, 2.6), columns=2) as (_, ((cached, spread),)):
        for axis, of in ((cached, "cached_ratio"), (spread, "variation_requests")):
            for runs, colour, label in (
                (shared, OURS, "shared index"),
                (own, OTHERS, "own placements only"),
            ):
                counts = [s.gateways for s in runs]
                axis.plot(counts, [getattr(s, of) for s in runs], "o-", color=colour, label=label)
            axis.set_xscale("log", base=2)
            counts = sorted({s.gateways for s in found})
            axis.set_xticks(counts, list(map(str, counts)))
            axis.set_xlabel("gateway processes")
        cached.set_ylim(0, 1)
        cached.set_ylabel("prompt tokens cached")
        ceilings = [(s.gateways, s.cached_ratio / s.of_ceiling) for s in shared if s.of_ceiling]
        cached.plot(*zip(*ceilings, strict=True), ":", color=TAIL, label="ceiling")
        cached.legend(frameon=False)
        spread.set_ylabel("variation of requests over replicas")
        spread.set_ylim(0, max(2 * VARIATION_GOAL, spread.get_ylim()[1]))
        spread.axhline(VARIATION_GOAL, linestyle=":", color=LIMIT, label="goal")
        spread.legend(frameon=False)
