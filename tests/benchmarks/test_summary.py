"""The page of all that was measured says only what results say."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import headlines, kept_results, measured, summary
from benchmarks.harness.results import report
from benchmarks.harness.results.revision import Revision
from common.errors import Problem
from tests.some import some

ROOT = Path(__file__).parents[2]


def printed(capsys: pytest.CaptureFixture[str], figure: float) -> dict[str, Any]:
    """What a benchmark ends with."""
    goals = {
        "lookup_ms_p50": report.goal(figure, at_most=0.5),
        "hits_of_oracle": report.goal(0.993, at_least=0.99),
    }
    report.finish("index", {"lookup_ms": figure}, goals, seeds=[1, 2])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_result_names_the_command_that_produced_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "--sizes", "8", "1000"])
    assert printed(capsys, 0.2)["command"] == 'make bench-index ARGS="--sizes 8 1000"'
    monkeypatch.setattr(sys, "argv", ["run"])
    report.finish("drills", {}, {}, seeds=[])
    assert json.loads(capsys.readouterr().out)["command"] == "make drills"


def test_a_result_names_the_commit_the_seeds_and_the_interpreters_build(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "STARTED", Revision("c0ffee1", dirty=True))
    result = printed(capsys, 0.2)
    assert (result["commit"], result["dirty"], result["seeds"]) == ("c0ffee1", True, [1, 2])
    assert result["python_build"].keys() == {"pgo", "lto"}
    assert " Commit c0ffee1, with changes." in report.machine_in_words()


LINES = ["A lookup takes {index[figures][lookup_ms]:.2f} ms.", "{nobody[measured]} this."]


def test_the_page_has_each_result_and_each_goal_that_was_missed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = summary.page({"index": [printed(capsys, 0.75)]}, {"index": ""}, LINES)
    assert "- A lookup takes 0.75 ms.\n" in page and "this." not in page
    assert "[`index`](prefix-index.md)" in page and "| 1/2 | 1 |" in page
    assert "| `index/lookup_ms_p50` | 0.75 | ≤0.5 | one |" in page
    assert "hits_of_oracle" not in page
    assert "| current |" in page


def test_the_page_shows_the_last_run_and_the_range_of_all_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [printed(capsys, figure) for figure in (0.9, 0.4, 0.75)]
    page = summary.page({"index": runs}, {}, LINES)
    assert "- A lookup takes 0.75 ms.\n" in page
    assert "| `index/lookup_ms_p50` | 0.75 | ≤0.5 | 0.4 to 0.9 |" in page
    assert "| 1/2 | 3 |" in page and "| not known |" in page


def test_a_result_of_code_that_has_changed_is_marked_wherever_its_figures_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = summary.page({"index": [printed(capsys, 0.75)]}, {"index": "abc1234"}, LINES)
    assert "- A lookup takes 0.75 ms. **Stale**.\n" in page
    assert "| **abc1234** |" in page


def pages_with_figures() -> list[tuple[str, str]]:
    """Each page, by its path from the repository's root, with its text."""
    return [(place, (ROOT / place).read_text()) for place in summary.places()]


def names_at(place: str) -> list[str]:
    """The benchmarks with kept results whose figures are on that page."""
    text = (ROOT / place).read_text()
    return [name for name in kept_results.read() if summary.BEGINS.format(name) in text]


def test_a_page_says_which_of_its_figures_are_stale() -> None:
    history = kept_results.read()
    all_stale = dict.fromkeys(history, "abc1234")
    for place, text in some(pages_with_figures()):
        fresh = summary.with_figures(place, text, history, {})
        assert "**Stale**: the code has changed" not in fresh
        assert "**Stale** since" not in fresh
        words = " ".join(summary.with_figures(place, text, history, all_stale).split())
        in_a_sentence, on_its_page = "(`{}` since abc1234).", "**Stale** since abc1234."
        for name in names_at(place):
            assert in_a_sentence.format(name) in words or on_its_page in words


def table_of_the_readme(stale: dict[str, str]) -> str:
    readme = (ROOT / "README.md").read_text()
    written = summary.with_figures("README.md", readme, kept_results.read(), stale)
    return written.partition(summary.BEGINS.format("table"))[2].partition(summary.ENDS)[0].strip()


def test_the_readme_quotes_no_figure_that_is_stale() -> None:
    of = sorted({row["benchmark"] for row in headlines.TABLE})
    assert "docs/benchmarks/backtest.md" not in table_of_the_readme({"backtest": "abc1234"})
    assert not re.search(r"\d", table_of_the_readme(dict.fromkeys(of, "abc1234")))


def test_the_readme_explains_equal_only_if_it_has_a_table() -> None:
    of = sorted({row["benchmark"] for row in headlines.TABLE})
    assert '"Equal" means' in table_of_the_readme({})
    assert '"Equal" means' not in table_of_the_readme(dict.fromkeys(of, "abc1234"))


def test_the_readme_has_a_row_for_each_comparison_that_is_current() -> None:
    lines = [line for line in table_of_the_readme({}).splitlines() if line.startswith("|")]
    rows = [line.strip("| ").split(" | ") for line in lines[2:]]
    assert len(rows) == len(headlines.TABLE) <= 5
    for what, figure, peer, result, link in some(rows):
        percent, word = figure.split("% ")
        differs = {"lower": "better", "higher": "worse"}[word]
        assert result == (differs if int(percent) > summary.EQUAL else "equal")
        assert what and peer and re.search(r"docs/benchmarks/\w+\.md", link)


def test_the_date_commit_and_note_of_a_result_are_on_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = printed(capsys, 0.2) | {"commit": "c0ffee1c0ffee", "dirty": True}
    result["figures"]["note"] = "ended early"
    page = summary.page({"index": [result]}, {}, [])
    assert f"| {result['date']} | c0ffee1, with changes |" in page
    assert "- `index`: ended early.\n" in page


def test_the_error_names_a_file_that_no_benchmark_printed(tmp_path: Path) -> None:
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


def test_the_page_matches_the_stored_results() -> None:
    """Otherwise run `make bench-summary`. What is stale is as that found it: later commits change
    it."""
    history, stale = kept_results.read(), measured.read()
    assert summary.PAGE.read_text() == summary.page(history, stale)
    for place, text in some(pages_with_figures()):
        assert summary.with_figures(place, text, history, stale) == text


def test_each_benchmark_with_a_template_has_its_place_on_that_page() -> None:
    texts = dict(pages_with_figures())
    for name, of in some(headlines.SENTENCES.items()):
        assert summary.BEGINS.format(name) in texts[of["page"]]


def test_each_benchmark_with_a_page_has_its_place_on_that_page() -> None:
    begins = {name: summary.BEGINS.format(name) for name in headlines.PAGES}
    texts = [text for _, text in pages_with_figures()]
    assert not [name for name, begin in begins.items() if not any(begin in of for of in texts)]


def test_a_page_names_its_command_without_the_option_that_wrote_it() -> None:
    history = kept_results.read()
    written = [summary.with_figures(of, text, history, {}) for of, text in pages_with_figures()]
    assert any("--rounds 3" in text for text in written)
    assert not any("--write" in text for text in written)
