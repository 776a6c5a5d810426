"""Chaos tests: all runs are added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.results import report
from benchmarks.pages.parts import Blocks, Runs, code


def page(runs: Runs) -> Blocks:
    of = runs[-1]["figures"]["runs"]
    tests = sum(map(len, of))
    wrong = runs[-1]["goals"]["drills_that_went_wrong"]["figure"]
    yield f"Of {tests} chaos tests in {len(of)} runs, {tests - wrong} ended as expected."
    head = ("Test", "Requests", "Hit", "Complete", "Errors", "Gap, s", "Whole after, s", "Expected")
    rows = [head, *(_chaos_test(name, [run[name] for run in of]) for name in of[0])]
    # without a wrong end, the sentence above is enough
    yield report.padded([row[:-1] for row in rows] if not wrong else rows)
    if updates := [run["update"] for run in of if "took_s" in run.get("update", {})]:
        fewest = min(update["fewest_serving"] for update in updates)
        took = ", ".join(f"{one['took_s']:.0f} s ({one['one_start_s']:.0f} s)" for one in updates)
        yield (
            f"While `update` replaced three engines, at least {fewest} served. The updates took"
            f" {took}. The start of one engine is in parentheses."
        )


def _chaos_test(name: str, every: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """A test without an end has no figures but what is wrong."""
    seen = [figures for figures in every if "skipped" not in figures]
    if not seen:
        return (code(name), *[""] * 6, f"skipped: {every[0]['skipped']}")
    errors = sum((Counter(figures.get("told", {})) for figures in seen), Counter[str]())
    wrong = sorted({what for figures in seen for what in figures["wrong"]})
    right = f"{sum(not figures['wrong'] for figures in seen)}/{len(every)}"
    return (
        code(name),
        *(str(sum(of.get(what, 0) for of in seen)) for what in ("requests", "hit", "went_on")),
        ", ".join(f"{count} {code(error)}" for error, count in sorted(errors.items())),
        *(
            f"{max(of.get(what, 0) for of in seen):.1f}"
            for what in ("longest_gap_s", "whole_after_s")
        ),
        f"{right}: {'; '.join(wrong)}" if wrong else right,
    )
