"""docs/benchmarks/prefix-index.md and its plot; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.stand import report
from common.svg import LIMIT, OTHERS, OURS, TAIL, drawn

MIXES = ("cold", "conversation", "ladder")
ALTERNATIVES = ("smembers", "hkeys")


def page(figures: Mapping[str, float], goals: Mapping[str, Any], machine: str) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    return f"""\
# The prefix index

`make bench-index ARGS=--write`:
{machine}

Lookups over loopback TCP, in the event loop that Ray Serve's replicas have. All cases take turns,
on cores that are kept from halting: a virtual machine's host takes a while to wake one that halts,
as the last row shows, and a busy gateway's do not.
*Conversation*: every replica holds the first eighth of the prompt (a shared system prompt), three
hold this conversation, one of them to three segments from its end. *Ladder*: every replica holds
another depth, the most there is to read. *Cold*: nobody holds anything. With 1,000 replicas there
are 2.5 million segments in Redis.

![Lookup times by case](index.svg)

| Case | p50, ms | p99, ms |
| -- | -- | -- |
{_rows(figures)}

One segment takes {figures["bytes_per_segment_64_replicas"]:g} bytes of Redis with 64 replicas and
{figures["bytes_per_segment_1000_replicas"]:g} with 1,000. One publisher took in
{figures["published_block_events_per_s"]:,.0f} KV block events a second (blocks of 16 tokens), from
vLLM's own encoding to bits in Redis.

`smembers` and `hkeys` are the obvious alternative, a set or a hash of replicas for each segment,
asked for in one pipeline. *Placement* is lookup and ranking of 64 replicas for a prompt of 32,768
tokens, without tokenizing, from its segment keys and from its tokens.

## Goals

{report.goal_table(goals, ",.3f", ",g")}
"""


def _rows(figures: Mapping[str, float]) -> str:
    names = [name.removesuffix("_ms_p50") for name in figures if name.endswith("_ms_p50")]
    return "\n".join(
        f"| {name.replace('_', ' ')} | {figures[f'{name}_ms_p50']:.3f} |"
        f" {figures[f'{name}_ms_p99']:.3f} |"
        for name in names
    )


def draw(figures: Mapping[str, float], goals: Mapping[str, Any], file: Path) -> None:
    """Write the plot to `file`."""
    sizes = ((256, 64), (1024, 64), (256, 1000), (1024, 1000))
    with drawn(file, (8.4, 2.8), columns=len(sizes), sharey=True) as (_, axes):
        for axis, (segments, replicas) in zip(axes[0], sizes, strict=True):
            names = [f"lookup_{segments}_segments_{replicas}_replicas_{mix}" for mix in MIXES]
            names += [
                f"{a}_{segments}_segments_{replicas}_replicas_conversation" for a in ALTERNATIVES
            ]
            names = [name for name in names if f"{name}_ms_p50" in figures]
            labels = [*MIXES, *ALTERNATIVES][: len(names)]
            colours = [OURS if name.startswith("lookup") else OTHERS for name in names]
            places = range(len(names))
            axis.bar(places, [figures[f"{name}_ms_p50"] for name in names], color=colours)
            p99 = [figures[f"{name}_ms_p99"] for name in names]
            axis.scatter(places, p99, color=TAIL, marker="_", s=60, zorder=3)
            if limit := goals.get(f"{names[1]}_ms_p50"):
                axis.hlines(limit["at_most"], 0.6, 1.4, color=LIMIT, zorder=4)
            axis.set_yscale("log")
            axis.set_title(f"{segments:,} segments,\n{replicas:,} replicas")
            axis.set_xticks(places, labels, rotation=90)
        axes[0][0].set_ylabel("ms: p50, p99 (-), goal (orange)")
