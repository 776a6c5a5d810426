"""docs/benchmarks/weights.md; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.stand import report


def page(figures: Mapping[str, Any], goals: Mapping[str, Any], command: str, machine: str) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    schemes = figures["schemes"]
    one = next(iter(schemes.values()))
    ruined, kv = figures["ruined"], figures["kv_tokens"]
    return f"""\
# What quantization loses, and speculation gains

`{command}`: {figures["minutes"]:.0f} minutes, {machine}

SmolLM2-135M-Instruct, quantized by `antefix quantize` and compared with its bfloat16 weights by
`antefix evaluate`, both on the same engine: {one["tokens"]:,} tokens of this project's
documentation, calibrated on another part of it. Perplexity of the original:
{_estimate(one["reference_perplexity"], ".2f")}. Intervals are 95 %.

| Scheme | Group | Bytes | Perplexity | Mean KL, nats | Same first choice | Made in |
| -- | -- | -- | -- | -- | -- | -- |
{_rows(schemes, _quality)}

Rates are those of this CPU, over the original's, measured in turns; a GPU's are another matter
([planning.md](../planning.md)).

| Scheme | Prefill | Decode | Decode, {one["rates"]["concurrency"]} at once |
| -- | -- | -- | -- |
{_rows(schemes, _rates)}
{_answers(schemes)}{_speculation(figures["speculation"])}
## Goals

| Goal | Measured | |
| -- | -- | -- |
{_goals(goals)}

The ruined one is `rtn` with the scales of one layer's MLP doubled: a mean KL of
{_estimate(ruined["kl"], ".3g")}, exit code {ruined["exit_code"]}. A KV cache of 1 GiB holds
{kv["planned"]:,} tokens by the plan, and {kv["engine"]:,} in the engine.
"""


def _rows(schemes: Mapping[str, Any], cells: Any) -> str:
    return "\n".join(
        f"| `{name}` | " + " | ".join(cells(one)) + " |" for name, one in schemes.items()
    )


def _quality(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(one["group_size"] or ""),
        f"{one['bytes_ratio']:.3f}",
        _estimate(one["perplexity"], ".2f"),
        _estimate(one["kl"], ".3f"),
        _estimate(one["top_1_agreement"], ".1%"),
        f"{one['seconds']:.0f} s",
    )


def _rates(one: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = ("prefill", "decode", "concurrent_decode")
    return tuple(_estimate(one["rates"][kind], ".2f") for kind in kinds)


def _answers(schemes: Mapping[str, Any]) -> str:
    found = {name: one["answers"] for name, one in schemes.items()}
    any_of = next(iter(found.values()))
    said = "; ".join(
        f"`{name}` {_estimate(of['equal'], '.0%')}, {_estimate(of['common_prefix'], '.0%')}"
        for name, of in found.items()
    )
    return f"""
Greedy answers of {any_of["max_tokens"]} tokens to {any_of["prompts"]} prompts that are equal to the
original's, and the share that both begin with: {said}.
"""


def _speculation(found: Mapping[str, Any]) -> str:
    rows = "\n".join(
        f"| {one['name']} | {_share(one['acceptance_rate'])} | {one['tokens_per_pass']:.2f} "
        f"| {one['equal_answers']:.0%} | {one['speedup']['mean']:.2f} "
        f"({one['speedup']['low']:.2f} to {one['speedup']['high']:.2f}) |"
        for one in found["measured"]
    )
    advice = found["recommended"] or "none"
    return f"""
## Speculation

`antefix tune-speculation` on the laptop's engine, {found["concurrency"]} request at a time,
{found["prompts"]} prompts, answers of {found["max_tokens"]} tokens; greedy answers that are equal
to those without speculation. It recommends: {advice}.

| Speculation | Accepted | Tokens a pass | Equal answers | Speedup |
| -- | -- | -- | -- | -- |
{rows}
"""


def _goals(goals: Mapping[str, Any]) -> str:
    rows = []
    for name, goal in goals.items():
        met = "met" if goal["met"] else "**not met**"
        rows.append(
            f"| {name.replace('_', ' ')} {report.wanted(goal)} | {goal['figure']:g} | {met} |"
        )
    return "\n".join(rows)


def _estimate(of: Mapping[str, float], form: str) -> str:
    return f"{of['value']:{form}} ({of['low']:{form}} to {of['high']:{form}})"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
