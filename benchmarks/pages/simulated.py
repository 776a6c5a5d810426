"""Benchmarks on simulated engines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.pages.parts import Blocks, Rows, Runs, goals, met
from benchmarks.stand import report

CHOOSERS = {
    "ours": "Antefix",
    "told": "Antefix with true rates",
    "fastest_first": "fastest first",
}


def kinds(runs: Runs) -> Blocks:
    figures, judged = runs[-1]["figures"], runs[-1]["goals"]
    ramp, lost = figures["ramp"]["by_chooser"], "ttft_p50_s"
    yield (
        f"On the ramp, choosing by price costs {judged['ramp_cost_of_fastest_first']['figure']:.2f}"
        f" of fastest first, but the median TTFT is {_median(ramp['ours'][lost]):.2f} s instead of"
        f" {_median(ramp['fastest_first'][lost]):.2f} s, and"
        f" {_median(ramp['ours']['attained']):.1%} of requests meet the SLO instead of"
        f" {_median(ramp['fastest_first']['attained']):.1%}. {met(runs)}"
    )
    heads = ("p50, s", "p90, s", "p99, s", "In SLO", "429s", "Slow kind", "Cost")
    rows: Rows = [("Trace and choice", *heads)]
    for trace, of in figures.items():
        for by, title in CHOOSERS.items():
            rows.append((f"{trace}, {title}", *_cells(of["by_chooser"][by])))
    yield report.padded(rows)
    for trace, of in figures.items():
        again = of["p99_ttft_of_the_same_again"]
        yield (
            f"On `{trace}`, the same choice with other random numbers has"
            f" {min(again):.3f} to {max(again):.3f} times the p99. It costs less than fastest first"
            f" {_priced(of['price_ratio_of_no_gain'])}, and 20 % less"
            f" {_priced(of['price_ratio_of_the_goal'])}."
        )
    yield goals(runs)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _cells(of: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    times = (f"{_median(of[f'ttft_{p}_s']):.2f}" for p in ("p50", "p90", "p99"))
    shares = (f"{_median(of['attained']):.2%}", f"{_median(of['rejected']):.0f}")
    return (*times, *shares, f"{_median(of['slow_share']):.0%}", f"{_median(of['cost']):.2f}")


def _priced(ratio: float | None) -> str:
    if ratio is None:
        return "at no price"
    return f"if a fast replica costs at least {ratio:.2f} times a slow one"
