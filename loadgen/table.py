"""The result of a run as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loadgen.summary import PERCENTS, tail_of

LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "gap_s": "gap", "e2e_s": "end to end"}
COLUMNS = ("mean", *(f"p{percent}" for percent in PERCENTS), "max")
PROMISES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "end to end"}


def rows(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row per latency with its figures in ms, without those that were never measured."""
    for key, name in LATENCIES.items():
        if figures := result[key]:
            yield (
                name,
                *(f"{1000 * figures[of]:,.1f}" if of in figures else "-" for of in COLUMNS),
            )


def facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the other facts with their names."""
    failed = result["requests"] - result["completed"]
    yield (
        "requests",
        f"{result['requests']} in {result['duration_s']:.1f} s, {result['completed']} answered,"
        f" {failed} failed",
    )
    for kind, error in result["errors"].items():
        yield kind, f"{error['count']}; the first: {error['first']}"
    yield "answers", f"{result['requests_per_s']:.2f} a second"
    by = " (events, because the server does not count tokens)"
    yield (
        "output tokens",
        f"{result['output_tokens']}, {result['output_tokens_per_s']:.1f} a second"
        + (by if result["output_tokens_counted_by"] == "events" else ""),
    )
    if (prompts := result["prompt_tokens"]) is None:
        yield "prompt tokens", "the server does not report it"
    else:
        yield "prompt tokens", f"{prompts}, {prompts / result['duration_s']:.1f} a second"
    cached = result["cached_ratio"]
    yield "cached", "the server does not report it" if cached is None else f"{cached:.3f} of them"
    if goodput := result["goodput"]:
        slo = ", ".join(f"{PROMISES[name]} {value:g} s" for name, value in goodput["slo"].items())
        yield (
            "goodput",
            f"{goodput['share']:.1%} of requests met {slo}: {goodput['requests_per_s']:.2f}"
            " a second",
        )
    client = result["client"]
    late = client["send_late_s"]
    percent, tail_s = tail_of(late)
    yield (
        "client",
        f"{client['cpu_share_of_a_core']:.0%} of a core, {1000 * client['cpu_s_per_request']:.1f}"
        f" ms of CPU a request; sent late by {1000 * late['p50']:.1f} ms at p50,"
        f" {1000 * tail_s:.1f} at p{percent}",
    )


def table(result: Mapping[str, Any]) -> str:
    lines = [("ms", *COLUMNS), *rows(result)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    told = list(facts(result))
    width = max(len(name) for name, _ in told)
    return "\n".join(
        [
            *aligned,
            "",
            *(f"{name.ljust(width)}  {words}" for name, words in told),
            *(f"\nWarning: {warning}" for warning in result["warnings"]),
        ]
    )
