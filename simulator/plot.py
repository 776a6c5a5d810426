"""A backtest as one small SVG; the same results give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.svg import LIMIT, OTHERS, OURS, TAIL, drawn
from simulator.results import arrivals_over_time, attainment_over_time
from simulator.types import Result

# After Antefix and the main peer; colour-blind readers can distinguish all of them.
COLOURS = (OURS, LIMIT, OTHERS, "#009e73", "#cc79a7", "#e69f00")


def draw(columns: Sequence[Sequence[Result]], file: Path) -> None:
    """Write the plot to `file`: a column per trace, with the results of its policies.

    Raises ImportError without matplotlib.
    """
    size = (2.5 * len(columns) + 1.5, 5.0)
    plot = drawn(file, size, 3, len(columns), top=0.95, sharex="col", height_ratios=(1, 2, 1))
    with plot as (figure, axes):
        for column, results in enumerate(columns):
            arrivals, replicas, attained = (axes[row][column] for row in range(3))
            arrivals.set_title(results[0].trace.name)
            arrivals.plot(*_minutes(arrivals_over_time(results[0])), color=TAIL, linewidth=1)
            arrivals.set_ylim(0)
            for result, colour in zip(results, COLOURS, strict=False):
                paid = [(sample.at, sample.paid) for sample in result.samples]
                replicas.plot(
                    *_minutes(paid),
                    color=colour,
                    linewidth=1,
                    drawstyle="steps-post",
                    label=result.policy,
                )
                attained.plot(*_minutes(attainment_over_time(result)), color=colour, linewidth=1)
            replicas.set_ylim(0)
            attained.set_ylim(-0.03, 1.03)
            attained.set_xlabel("minutes")
        for row, label in enumerate(("requests/s", "replicas paid for", "SLO attained")):
            axes[row][0].set_ylabel(label)
        handles, labels = axes[1][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper right", ncols=len(labels), frameon=False)


def _minutes(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [at / 60 for at, _ in points], [value for _, value in points]
