"""The routing benchmark's figures as one small SVG; the same figures give the same bytes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.routing.results import Summaries
from common.svg import LIMIT, OTHERS, OURS, TAIL, drawn


def draw(found: Summaries, file: Path) -> None:
    """Write the plot of all workloads and policies to `file`."""
    workloads = list(dict.fromkeys(workload for workload, _ in found))
    policies = list(dict.fromkeys(policy for _, policy in found))
    colours = [OURS if policy == "prefix" else OTHERS for policy in policies]
    size = (2.1 * len(workloads) + 0.6, 4.4)
    with drawn(file, size, 2, len(workloads), top=0.96) as (figure, axes):
        for column, workload in enumerate(workloads):
            cells = [found[workload, policy] for policy in policies]
            places = range(len(policies))
            times, ratios = axes[0][column], axes[1][column]
            times.set_title(workload.replace("_", " "))
            times.bar(
                places, [1000 * cell.ttft_mean for cell in cells], color=colours, label="mean"
            )
            tail = [1000 * cell.ttft_tail.value for cell in cells]
            name = cells[0].ttft_tail.name
            times.scatter(places, tail, color=TAIL, marker="_", s=60, label=name, zorder=3)
            times.set_xticks([])
            ratios.bar(places, [cell.cached_ratio for cell in cells], color=colours)
            oracle = [cell.oracle_ratio for cell in cells]
            ratios.scatter(places, oracle, color=LIMIT, marker="_", s=60, label="oracle", zorder=3)
            ratios.set_ylim(0, 1)
            ratios.set_yticks([0, 0.5, 1])
            ratios.set_xticks(places, [p.replace("_", " ") for p in policies], rotation=90)
            for axis in (times, ratios):
                axis.tick_params(length=0)
        axes[0][0].set_ylabel("TTFT, ms")
        axes[1][0].set_ylabel("prompt tokens cached")
        marks = [axes[0][0].get_legend_handles_labels(), axes[1][0].get_legend_handles_labels()]
        handles, labels = ([*marks[0][i], *marks[1][i]] for i in (0, 1))
        figure.legend(handles, labels, loc="upper right", ncols=len(labels), frameon=False)
