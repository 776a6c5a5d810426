"""Pools of two GPU models: medians over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.harness.results import report
from benchmarks.pages.parts import Blocks, Rows, Runs, goals, met

CHOOSERS = {
    "ours": "Antefix",
    "told": "Antefix with true rates",
    "fastest_first": "fastest first",
}


def page(runs: Runs) -> Blocks:
    figures, judged = runs[-1]["figures"], runs[-1]["goals"]
    costs = [_cost(trace, of, judged) for trace, of in figures.items()]
    yield f"*Fastest first* is the baseline. {' '.join(costs)} {met(runs)}"
    heads = ("p50, s", "p90, s", "p99, s", "In SLO", "429s", "Slow GPUs", "Cost")
    rows: Rows = [("Trace and choice", *heads)]
    for trace, of in figures.items():
        for by, title in CHOOSERS.items():
            rows.append((f"{trace}, {title}", *_cells(of["by_chooser"][by])))
    yield report.padded(rows)
    more: Rows = [
        ("Trace", "Control, p99", "Tokens", "Replicas, true rates", "Saves anything", "Saves 20%")
    ]
    for trace, of in figures.items():
        again, tokens = of["p99_ttft_of_the_same_again"], of["token_cost_of_fastest_first"]
        more.append(
            (
                *(trace, f"{min(again):.3f} to {max(again):.3f}", f"{median(tokens):.2f}"),
                f"{_by_true_rates(of):.2f}",
                _priced(of["price_ratio_of_no_gain"]),
                _priced(of["price_ratio_of_the_goal"]),
            )
        )
    yield report.padded(more)
    yield goals(runs)


def _cost(trace: str, of: Mapping[str, Any], judged: Mapping[str, Any]) -> str:
    ours, fastest = (median(of["by_chooser"][by]["attained"]) for by in ("ours", "fastest_first"))
    return (
        f"On `{trace}`, the cost of replicas is"
        f" {report.change(judged[f'{trace}_cost_of_fastest_first']['figure'])}, and {ours:.1%} of"
        f" requests meet the SLO instead of {fastest:.1%}."
    )


def _by_true_rates(of: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> float:
    costs = (of["by_chooser"][by]["cost"] for by in ("told", "fastest_first"))
    ratios: list[float] = [told / fastest for told, fastest in zip(*costs, strict=True)]
    return median(ratios)


def _cells(of: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    times = (f"{median(of[f'ttft_{p}_s']):.2f}" for p in ("p50", "p90", "p99"))
    shares = (f"{median(of['attained']):.2%}", f"{median(of['rejected']):.0f}")
    return (*times, *shares, f"{median(of['slow_share']):.0%}", f"{median(of['cost']):.2f}")


def _priced(ratio: float | None) -> str:
    if ratio is None:
        return "at no price"
    return f"from {ratio:.2f}"
