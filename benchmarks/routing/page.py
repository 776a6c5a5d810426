"""docs/benchmarks/routing.md, and the table that the command prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.routing.results import RoutingSummary, Summaries
from benchmarks.stand import report
from benchmarks.stand.small_model import LAYERS

HEADINGS = (
    "Workload", "Policy", "Mean TTFT, ms", "p50", "Tail", "Cached", "Oracle's", "Of oracle",
    "Requests, max/mean", "Tokens, max/mean", "Requests/s", "Lookups failed", "Failed",
)  # fmt: skip


def table(found: Summaries) -> str:
    """Markdown, padded so that it reads in a terminal too."""
    rows = [HEADINGS, *(_row(workload, policy, s) for (workload, policy), s in found.items())]
    return report.padded(rows)


def _row(workload: str, policy: str, summary: RoutingSummary) -> tuple[str, ...]:
    return (
        workload,
        policy,
        *(
            f"{1000 * t:.0f}"
            for t in (summary.ttft_mean, summary.ttft_p50, summary.ttft_tail.value)
        ),
        *(f"{r:.3f}" for r in (summary.cached_ratio, summary.oracle_ratio, summary.oracle_share)),
        f"{summary.requests_spread:.2f}",
        f"{summary.tokens_spread:.2f}",
        f"{summary.throughput:.2f}",
        str(summary.lookups_failed),
        str(summary.failures),
    )


def page(
    found: Summaries,
    goals: Mapping[str, Any],
    command: str,
    minutes: float,
    machine: str,
) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    return f"""\
# Routing policies compared

`{command}`: {minutes:.0f} minutes,
{machine}

Four real vLLM engines behind one gateway serve the same traffic under each policy in turn. For
every seed the policies run in a new order and with cold caches. Arrivals are open loop: a late
answer delays nothing but its own conversation. TTFT counts from when a request was due to its
first byte at the client. *Cached* is the share of prompt tokens that the engines say they did not
compute; *Oracle's* is the most that any router could have got for the same requests with caches
that never evict. The load columns are of the worst run. A lookup
failed when the index did not answer within its budget: that request was placed by load alone.
*Failed* counts requests that were not answered, or not placed by the policy asked for.

![TTFT and cached tokens by workload and policy](routing.svg)

{table(found)}

## Goals

{_goal_table(goals)}

## How to read this

- **The model** is the first {LAYERS} layers of the embedded one. Where a request goes depends on
  how many tokens a prompt has and which are cached, not on what they mean; with all its layers, two
  cores would compute too few prompts for a comparison of policies. Times are not a GPU's: compare
  them with each other.
- **Four engines share two cores.** A replica that waits lends its core to the others, so uneven
  load costs less here than on machines of their own, and what is computed twice costs all. `prefix`
  knows it, and has two at work rather than four: how even its load is where each has a GPU of its
  own is in [scale](scale.md).
- **The standard error** says how far chance could move a ratio of mean TTFTs: two policies are
  compared on the same requests, in batches of consecutive ones. *Tail*: the p99 of 300 requests or
  more, else the p90.
- Traffic: `loadgen/workloads.py`. Oracle: `benchmarks/stand/oracle.py`.
"""


def _goal_table(goals: Mapping[str, Any]) -> str:
    lines = ["| Goal | Figure | Standard error | Wanted | Met |", "| -- | -- | -- | -- | -- |"]
    for name, goal in goals.items():
        wanted, met = report.wanted(goal), report.met(goal)
        error = f"{goal['standard_error']:.3f}" if "standard_error" in goal else ""
        lines.append(
            f"| {name.replace('_', ' ')} | {goal['figure']:.3f} | {error} | {wanted} | {met} |"
        )
    return "\n".join(lines)
