"""The page of all that was measured says what results say, and nothing else."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, summary
from common.errors import Problem


def printed(capsys: pytest.CaptureFixture[str], figure: float) -> dict[str, Any]:
    """What a benchmark ends with."""
    goals = {
        "lookup_ms_p50": report.goal(figure, at_most=0.5),
        "hits_of_oracle": report.goal(0.993, at_least=0.99),
    }
    report.finish("index", {"lookup_ms": figure}, goals)
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_result_says_how_it_came_about(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "--sizes", "8", "1000"])
    assert printed(capsys, 0.2)["command"] == 'make bench-index ARGS="--sizes 8 1000"'
    monkeypatch.setattr(sys, "argv", ["run"])
    report.finish("drills", {}, {})
    assert json.loads(capsys.readouterr().out)["command"] == "make drills"


def test_the_page_has_each_result_and_each_goal_that_was_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["A lookup takes {index[figures][lookup_ms]:.2f} ms.", "{nobody[measured]} this."]
    monkeypatch.setattr(summary, "LINES", lines)
    page = summary.page({"index": printed(capsys, 0.75)})
    assert "- A lookup takes 0.75 ms.\n" in page and "this." not in page
    assert "[index](index.md)" in page and "| 1 of 2 |" in page
    assert "| index | lookup ms p50 | 0.75 | at most 0.5 |" in page
    assert "hits of oracle" not in page


def test_what_is_to_be_known_of_a_result_is_on_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "LINES", [])
    result = printed(capsys, 0.2)
    result["figures"]["note"] = "ended early"
    assert f"cores of {result['cpu']} (ended early) |" in summary.page({"index": result})


def test_what_no_benchmark_printed_is_refused_with_its_name(tmp_path: Path) -> None:
    (file := tmp_path / "index.out").write_text("Traceback\n")
    with pytest.raises(Problem, match=r"index\.out does not end with the line of JSON"):
        summary.read(file)
    with pytest.raises(Problem, match=r"other\.out cannot be read: No such file"):
        summary.read(tmp_path / "other.out")


def test_the_last_line_of_an_output_is_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = printed(capsys, 0.2)
    (file := tmp_path / "index.out").write_text(f"round 1\n{json.dumps(result)}\n")
    assert summary.read(file) == result


def test_the_page_is_that_of_the_results_that_are_kept() -> None:
    """Else: make bench-summary."""
    results = json.loads(summary.RESULTS.read_text())
    assert summary.PAGE.read_text() == summary.page(results)
    readme = summary.README.read_text()
    assert summary.with_figures(readme, results) == readme
    for goals in summary.TABLES.values():
        assert all(what in readme for what in goals.values())
    assert all(summary.BEGINS.format(name) in readme for name in summary.SENTENCES)
    for line in summary.LINES:  # none is dead
        assert line.format(**results)
