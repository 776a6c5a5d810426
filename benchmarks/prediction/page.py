"""docs/benchmarks/prediction.md; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.stand import report


def page(figures: Mapping[str, Any], goals: Mapping[str, Any], command: str, machine: str) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    return f"""\
# How right predicted times to first token are

<!-- Written by `{command}`. -->

`{command}`: {machine}

Four real engines, the gateway, Redis and what sends the requests share these cores. The traffic is
that of [the routing benchmark](routing.md), by policy `prefix`. Each prediction is compared with
what the gateway then measured from the placement to the first token; an error is relative to that.
*Alone* are those of all requests beside which no other was under way until their first token.

{table(figures)}

## Goals

{report.goal_table(goals, ".1%", ".0%")}

## Where the error comes from

- **The neighbours are most of it**: see *alone*. With four engines on these few cores a first token
  waits for engines that a gateway knows of as of its last report, and for those that get a request
  before it comes, which nobody can know.
- **What is learned needs time**: the first workload of the run has little to go by. A gateway's
  first requests, before it has learned anything at all, do not count.

Where each engine has cores or a GPU of its own there are no such neighbours. That was not measured.
"""


def table(figures: Mapping[str, Any]) -> str:
    """Markdown, padded so that it reads in a terminal too."""
    rows = [("Workload", "Requests", "Mean error", "p50", "p90", "Bias", "TTFT p50, ms")]
    rows += [
        (
            name,
            f"{of['requests']:,}",
            f"{of['mean_absolute_error']:.1%}",
            f"{of['p50_absolute_error']:.1%}",
            f"{of['p90_absolute_error']:.1%}",
            f"{of['mean_error']:+.1%}",
            f"{1000 * of['ttft_p50_s']:.0f}",
        )
        for name, of in figures.items()
    ]
    return report.padded(rows)
