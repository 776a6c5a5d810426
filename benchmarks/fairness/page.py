"""docs/benchmarks/fairness.md; the same figures give the same bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.stand import report

KINDS = {"alone": "alone", "full": "in a full pool", "flooded": "beside the flood"}
HEAD = (
    "The first tenant's requests", "Requests", "Refused", "Tail is the", "TTFT p50, s", "Tail",
    "Tail of each round", "Tail at the gateway", "Sent late, tail",
)  # fmt: skip


def page(
    figures: Mapping[str, Any],
    goals: Mapping[str, Any],
    command: str,
    minutes: float,
    machine: str,
) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    rounds = len(figures["full"]["ttft_tail_s_of_each_round"])
    full, flooded = figures["full"], figures["flooded"]
    rows = [HEAD, ("--",) * len(HEAD), *(_row(words, figures[of]) for of, words in KINDS.items())]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    judged = "\n".join(
        f"| {name.replace('_', ' ')} | {goal['figure']:g} | {goal['range'][0]:g} to"
        f" {goal['range'][1]:g} | {report.wanted(goal)} | {report.met(goal)} |"
        for name, goal in goals.items()
    )
    return f"""\
# What one tenant's flood costs another

<!-- Written by `{command}`. -->

`{command}`: {minutes:.0f} minutes,
{machine}

Two real engines, two tenants whose requests are alike. One sends
{figures["own_requests_per_s"]:.2f} requests a second, a quarter of what the fleet can serve
({figures["capacity_requests_per_s"]:.2f}). The other fills the rest, or floods the pool with four
times that: {full["others_offered"]} requests were offered, of which {full["others_served"]} were
served, and {flooded["others_offered"]}, of which {flooded["others_served"]} were. {rounds} seeds,
each in an order of chance; the first tenant's requests of a seed are due at the same times in each.

{table}

| Goal | Median | Range | Wanted | Met |
| -- | -- | -- | -- | -- |
{judged}

Times count from when a request was due. *Sent late* is what of them is the benchmark's own
client's, which shares the cores with the engines; *at the gateway* they count from when a request
came there. A *tail* is the p99 of 300 requests or more, otherwise the p90. Goals are the median of
the tails of each seed.{_noted(figures)}
"""


def _noted(figures: Mapping[str, Any]) -> str:
    return f"\n\n**Note**: {figures['note']}." if "note" in figures else ""


def _row(words: str, of: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        words,
        str(of["requests"]),
        str(of["refused"]),
        of["tail"],
        f"{of['ttft_p50_s']:.2f}",
        f"{of['ttft_tail_s']:.2f}",
        f"{of['tail_of_each_round']} "
        + ", ".join(f"{tail:.1f}" for tail in of["ttft_tail_s_of_each_round"]),
        f"{of['ttft_tail_s_at_the_gateway']:.2f}",
        f"{of['sent_late_tail_s']:.2f}",
    )
