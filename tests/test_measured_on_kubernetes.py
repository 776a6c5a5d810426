"""The table of docs/kubernetes/tested.md, from what the last runs noted."""

from __future__ import annotations

from typing import Any

from tests.kubernetes_long.measured import figures, tests

ONE, OTHER, *_ = tests()
FIRST, SECOND = ONE.name, OTHER.name
WHEN = "2026-01-02T03:04:05+00:00"


def passed(test: str) -> dict[str, Any]:
    return {"when": WHEN, "test": test, "outcome": "passed"}


def rows(table: str) -> list[str]:
    return [row for row in table.splitlines() if row.startswith("| ")][2:]


def test_a_test_that_has_not_run_keeps_its_row() -> None:
    before = f"On a cluster:\n\n| Formerly | 2025-12-31 | until ready 5 s | {OTHER.link} |\n"
    table = figures([passed(FIRST)], before)
    assert table.startswith("On a cluster:\n\n| What was tested |")
    assert rows(table)[0] == f"| {ONE.what} | 2026-01-02 |  | {ONE.link} |"
    assert rows(table)[1] == f"| {OTHER.what} | 2025-12-31 | until ready 5 s | {OTHER.link} |"


def test_a_test_that_did_not_pass_says_so() -> None:
    table = figures([passed(FIRST) | {"outcome": "failed"}])
    assert rows(table)[0] == f"| {ONE.what} | **failed** 2026-01-02 |  | {ONE.link} |"


def test_measurements_are_listed_by_parameter() -> None:
    lines = []
    for parameter in ("gateway", "engine"):
        name = f"{FIRST}[{parameter}]"
        lines += [
            {"when": WHEN, "test": name, "what": "failed", "value": 0.0, "unit": "requests"},
            {"when": WHEN, "test": name, "what": "longest pause", "value": 3.5, "unit": "s"},
            passed(name),
        ]
    told = "failed: 0; longest pause: 3.5 s"
    (row,) = rows(figures(lines))[:1]
    measured = f"*gateway*: {told}; <br>*engine*: {told}"
    assert row.endswith(f"| 2026-01-02 (gateway, engine) | {measured} | {ONE.link} |")


def test_a_test_that_has_never_run_says_so() -> None:
    assert rows(figures([]))[0] == f"| {ONE.what} | not yet |  | {ONE.link} |"


def test_the_cluster_of_the_last_run_is_named() -> None:
    lines = [{"when": WHEN, "cluster": "the new one"}]
    assert figures(lines, "On the old one:\n").startswith("On the new one:\n\n| What was tested |")
