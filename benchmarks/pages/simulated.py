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
    for trace, of in figures.items():
        ours, fastest = of["by_chooser"]["ours"], of["by_chooser"]["fastest_first"]
        yield (
            f"On `{trace}`, replicas cost {judged[f'{trace}_cost_of_fastest_first']['figure']:.2f}"
            " times those of fastest first, while the median TTFT is"
            f" {_median(ours['ttft_p50_s']):.2f} s instead of"
            f" {_median(fastest['ttft_p50_s']):.2f} s. {_median(ours['attained']):.1%} of requests"
            f" meet the SLO instead of {_median(fastest['attained']):.1%}. The p99 TTFT is"
            f" {judged[f'{trace}_p99_ttft_of_told']['figure']:.3f} times that by true rates."
        )
    yield met(runs)
    heads = ("p50, s", "p90, s", "p99, s", "In SLO", "429s", "Slow kind", "Cost")
    rows: Rows = [("Trace and choice", *heads)]
    for trace, of in figures.items():
        for by, title in CHOOSERS.items():
            rows.append((f"{trace}, {title}", *_cells(of["by_chooser"][by])))
    yield report.padded(rows)
    for trace, of in figures.items():
        again, tokens = of["p99_ttft_of_the_same_again"], of["token_cost_of_fastest_first"]
        yield (
            f"On `{trace}`, the same choice with other random numbers has {min(again):.3f} to"
            f" {max(again):.3f} times the p99 TTFT. Tokens cost {_median(tokens):.2f} times those"
            f" of fastest first. By true rates, replicas cost {_by_true_rates(of):.2f} times those"
            " of fastest first. Choosing by price saves anything"
            f" {_priced(of['price_ratio_of_no_gain'])}. It saves 20 %"
            f" {_priced(of['price_ratio_of_the_goal'])}."
        )
    yield goals(runs)


def _by_true_rates(of: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> float:
    costs = (of["by_chooser"][by]["cost"] for by in ("told", "fastest_first"))
    return _median([told / fastest for told, fastest in zip(*costs, strict=True)])


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _cells(of: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    times = (f"{_median(of[f'ttft_{p}_s']):.2f}" for p in ("p50", "p90", "p99"))
    shares = (f"{_median(of['attained']):.2%}", f"{_median(of['rejected']):.0f}")
    return (*times, *shares, f"{_median(of['slow_share']):.0%}", f"{_median(of['cost']):.2f}")


def _priced(ratio: float | None) -> str:
    if ratio is None:
        return "at no price"
    return f"if a fast replica costs {ratio:.2f} times a slow one or more"
