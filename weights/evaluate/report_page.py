"""An evaluation for people: a table, a page in Markdown, a plot in SVG.

matplotlib is imported when a plot is drawn, not before.
"""

from __future__ import annotations

import io
from typing import Any

from weights.evaluate.estimate import Estimate
from weights.evaluate.report import NAME, Evaluation

# Readable on white and on black.
INK = "#7a7f87"
FIRST, SECOND = "#3b82c4", "#d9822b"

Row = tuple[str, str, str, str]


def rows(found: Evaluation) -> list[Row]:
    """Return the measurements: name, reference, candidate, and their comparison."""
    a, b = found.reference, found.candidate
    table = [
        (
            "perplexity",
            f"{a.perplexity.value:.4g}",
            f"{b.perplexity.value:.4g}",
            f"{_times(found.perplexity_ratio)}",
        ),
        ("mean KL, nats a token", "", "", _between(found.kl, ".4g")),
        ("same likeliest token", "", "", _between(found.top_1_agreement, ".2%")),
    ]
    if answers := found.answers:
        table += [
            ("same greedy answer", "", "", _between(answers.equal, ".1%")),
            ("same start of the answer", "", "", _between(answers.common_prefix, ".1%")),
        ]
    if a.weight_bytes and b.weight_bytes:
        ratio = f"x {b.weight_bytes / a.weight_bytes:.3f}"
        table.append(("weights, MB", _mega(a.weight_bytes), _mega(b.weight_bytes), ratio))
    table.append(("load, s", f"{a.load_s:.1f}", f"{b.load_s:.1f}", f"x {b.load_s / a.load_s:.2f}"))
    if rates := found.rates:
        at = f"decode at {rates.concurrency}, tokens/s"
        table += [
            _rate("prefill, tokens/s", a.prefill_rate, b.prefill_rate, rates.prefill),
            _rate("decode at 1, tokens/s", a.decode_rate, b.decode_rate, rates.decode),
            _rate(at, a.concurrent_decode_rate, b.concurrent_decode_rate, rates.concurrent_decode),
        ]
    return table


def verdict(found: Evaluation) -> str:
    """Return one sentence; empty if no limit was set."""
    if found.max_kl is None and found.max_ppl_increase is None:
        return ""
    broken = found.exceeded(found.max_kl, found.max_ppl_increase)
    return f"Refused: {'; '.join(broken)}." if broken else "Within the limits."


def text(found: Evaluation) -> str:
    """Return the evaluation as text for a terminal."""
    table = [("", "A", "B", "B against A"), *rows(found)]
    widths = [max(len(row[i]) for row in table) for i in range(4)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip()
        for row in table
    ]
    head = [f"A: {found.reference.model}", f"B: {found.candidate.model}", _read(found)]
    end = ["", verdict(found)] if verdict(found) else []
    return "\n".join([*head, "", *lines, *end])


def markdown(found: Evaluation) -> str:
    a, b = found.reference, found.candidate
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows(found))
    arguments = ", ".join(f"`{key}={value}`" for key, value in found.engine_args.items())
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    how = "both loaded at once, measured in turns" if found.together else "one after the other"
    percentiles = ", ".join(
        f"{name}: {value:.3g}" for name, value in found.distribution.kl_percentiles.items()
    )
    return f"""# Evaluation of {b.model}

A is the reference, `{a.model}` ({a.dtype}); B is `{b.model}` ({b.dtype}).
{_read(found)}

| | A | B | B against A |
| -- | --: | --: | -- |
{table}

{verdict(found) or "No limit was set."}

In brackets: 95% confidence intervals, by resampling windows, answers or rounds. Mean KL is
KL(A || B) over the whole vocabulary, from the log-probabilities of the engine's own kernels.
KL by percentile: {percentiles}.

![KL by position, log-probability differences, and rates]({NAME}.svg)

Engines: {how}; {arguments or "vLLM's defaults"}. {versions}. {found.date}.
Weights of B: digest `{b.digest or "none"}`.
"""


def plot(found: Evaluation) -> str:
    """Return an SVG: divergence by position, distribution of differences, rates."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": NAME, "font.size": 9.0}
    for colour in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"):
        style[colour] = INK
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 3.1), layout="constrained")
        by_position, differences, rates = figure.subplots(1, 3)
        shown = found.distribution
        by_position.plot(shown.positions, shown.kl_by_position, color=FIRST)
        by_position.set(xlabel="token of the window", ylabel="mean KL, nats", ylim=(0, None))
        differences.stairs(shown.differences, shown.edges, fill=True, color=FIRST)
        differences.set(xlabel="log-probability, B - A", ylabel="share of tokens", yscale="log")
        bars = _bars(found)
        places = range(len(bars))
        for place, (_, ratio) in zip(places, bars, strict=True):
            error = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
            rates.bar(place, ratio.value, yerr=error, color=SECOND, ecolor=INK, width=0.6)
        rates.axhline(1.0, color=INK, linewidth=0.8)
        rates.set_xticks(list(places), [name for name, _ in bars])
        rates.set(ylabel="B over A")
        for axes in (by_position, differences, rates):
            axes.patch.set_alpha(0)
            axes.spines[["top", "right"]].set_visible(False)
        svg = io.StringIO()
        # no date: one evaluation gives one file
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return svg.getvalue()


def _bars(found: Evaluation) -> list[tuple[str, Estimate]]:
    """Return the ratios that have a place in the plot."""
    a, b = found.reference, found.candidate
    bars = [("perplexity", found.perplexity_ratio)]
    if a.weight_bytes and b.weight_bytes:
        ratio = b.weight_bytes / a.weight_bytes
        bars.append(("bytes", Estimate(ratio, ratio, ratio)))
    if rates := found.rates:
        bars += [
            ("prefill", rates.prefill),
            ("decode\nat 1", rates.decode),
            (f"decode\nat {rates.concurrency}", rates.concurrent_decode),
        ]
    return bars


def _read(found: Evaluation) -> str:
    return f"Read: {found.text}; {found.tokens:,} tokens in {found.windows} windows."


def _rate(name: str, a: float | None, b: float | None, ratio: Estimate) -> Row:
    return name, f"{a or 0:,.1f}", f"{b or 0:,.1f}", _times(ratio)


def _times(ratio: Estimate) -> str:
    return f"x {_between(ratio, '.3f')}"


def _between(estimate: Estimate, form: str) -> str:
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def _mega(size: int) -> str:
    return f"{size / 1e6:,.1f}"
