"""What the long tests found: a line of JSON each in .cache/kubernetes-long.jsonl.

    python -m tests.kubernetes_long.measured    writes it into docs/kubernetes/tested.md

A goal on time is shown, met or not: the speed of two cores is not a requirement. What a
test asserts is that requests are answered and that things come to be at all.
"""

from __future__ import annotations

import ast
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.helm.helm import ROOT

FILE = ROOT / ".cache" / "kubernetes-long.jsonl"
PAGE = ROOT / "docs" / "kubernetes" / "tested.md"
BEGIN, END = "<!-- python -m tests.kubernetes_long.measured -->\n", "<!-- end of the figures -->\n"

_now: list[str] = []


def begins(test: str) -> None:
    """What is measured from now on is this test's."""
    _now[:] = [test]


def ended(test: str, outcome: str) -> None:
    """`outcome`: passed, failed or skipped."""
    _note({"test": test, "outcome": outcome})


def cluster_is(what: str) -> None:
    """Versions and machine, in one line."""
    _note({"cluster": what})


def measured(what: str, value: float, unit: str, at_most: float | None = None) -> None:
    line = {"test": _now[0] if _now else "", "what": what, "value": round(value, 1), "unit": unit}
    if at_most is not None:
        line |= {"goal": at_most, "met": value <= at_most}
    _note(line)
    print(f"\nmeasured {json.dumps(line)}")


def _note(line: dict[str, Any]) -> None:
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as lines:
        lines.write(json.dumps({"when": datetime.now(UTC).isoformat(timespec="seconds")} | line))
        lines.write("\n")


class LongTest(NamedTuple):
    """A test. `what`: the first line of its docstring, a noun phrase for what was tested."""

    name: str
    what: str
    file: str

    @property
    def link(self) -> str:
        return f"[`{self.name}`](../../{self.file})"


def tests() -> list[LongTest]:
    """All functions that are tests, as they stand in their files."""
    return [
        LongTest(function.name, _what(function), str(file.relative_to(ROOT)))
        for file in sorted(Path(__file__).parent.glob("test_*.py"))
        for function in ast.parse(file.read_text()).body
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_")
    ]


def _what(function: ast.FunctionDef) -> str:
    lines = (ast.get_docstring(function) or "").splitlines()
    assert lines, f"the docstring of {function.name} must name what is tested"
    return lines[0].removesuffix(".")


def figures(lines: list[dict[str, Any]], before: str = "") -> str:
    """A table of every test: how it ended last, and what it measured then.

    Tests that `lines` know nothing of keep their row of the table `before`.
    """
    rows = ["| What was tested | Last run | Measured | Test |", "| -- | -- | -- | -- |"]
    kept = [row.split(" | ") for row in before.splitlines() if row.startswith("| ")]
    found_before = {link.removesuffix(" |"): middle for _, *middle, link in kept}
    for test in tests():
        of_test = [line for line in lines if line.get("test", "").partition("[")[0] == test.name]
        last = {line["test"]: line for line in of_test if "outcome" in line}
        if not last and (middle := found_before.get(test.link)):
            rows.append(" | ".join((f"| {test.what}", *middle, f"{test.link} |")))
            continue
        ends = _ends(last)
        # a run's own: what an earlier one measured is of an earlier chart
        runs = {variant: _of_last_run(of_test, variant) for variant in last}
        told = "; <br>".join(
            _variant(variant) + "; ".join(map(_figure_text, values))
            for variant, values in runs.items()
            if values
        )
        rows.append(f"| {test.what} | {ends or 'not yet'} | {told} | {test.link} |")
    on = [line for line in before.splitlines() if line.startswith("On ")]
    on += [f"On {line['cluster']}:" for line in lines if "cluster" in line]
    return "\n".join([*on[-1:], *([""] if on else []), *rows, ""])


def _ends(last: dict[str, dict[str, Any]]) -> str:
    """How each variant of a test ended, and when. Variants that ended alike share a date."""
    variants: dict[str, list[str]] = {}
    for test, end in last.items():
        how = f"{_ended(end)} {end['when'][:10]}".strip()
        variants.setdefault(how, []).append(_parameters(test))
    return "; ".join(
        f"{how} ({', '.join(names)})" if any(names) else how for how, names in variants.items()
    )


def _of_last_run(lines: list[dict[str, Any]], test: str) -> list[dict[str, Any]]:
    of_test = [line for line in lines if line["test"] == test]
    *_, end = (number for number, line in enumerate(of_test) if "outcome" in line)
    begin = max((n for n, line in enumerate(of_test[:end]) if "outcome" in line), default=-1)
    return [line for line in of_test[begin + 1 : end] if "what" in line]


def _parameters(test: str) -> str:
    return test.partition("[")[2].removesuffix("]")


def _variant(test: str) -> str:
    parameters = _parameters(test)
    return f"*{parameters}*: " if parameters else ""


def _ended(end: dict[str, Any]) -> str:
    """Empty for one that passed: most did."""
    return "" if end["outcome"] == "passed" else f"**{end['outcome']}**"


def _figure_text(line: dict[str, Any]) -> str:
    unit = "" if line["unit"] == "requests" else f" {line['unit']}".rstrip()
    told = f"{line['what']}: {line['value']:g}{unit}"
    if "goal" not in line:
        return told
    return f"{told} (goal {line['goal']:g}{'' if line['met'] else ': **not met**'})"


def main() -> None:
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{figures(lines, table)}{END}{after}")


if __name__ == "__main__":
    main()
