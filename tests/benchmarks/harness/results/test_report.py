"""What a result names, and how figures become parts of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.results import goal_groups, report


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "make bench-overload"),
        (["--write", "--seeds", "1", "2"], 'make bench-overload ARGS="--write --seeds 1 2"'),
        (["--keep", "/home/me/kept"], "make bench-overload"),
        (["--keep=/home/me/kept", "--write"], 'make bench-overload ARGS="--write"'),
        (
            ["--seeds", "1", "--keep", "k", "--write"],
            'make bench-overload ARGS="--seeds 1 --write"',
        ),
    ],
)
def test_a_result_names_its_command_without_files_of_the_machine(
    given: list[str], named: str
) -> None:
    assert report.command("overload", given) == named


KEPT = {
    "command": "make bench-x",
    "minutes": 66.6,
    "commit": "c0ffee1c0ffee",
    "dirty": False,
    "date": "2026-11-26",
    "cpu": "a CPU",
    "cores": 2,
    "python": "3.11.7",
    "versions": {"ray": "2.60.0"},
}


def test_a_page_states_what_was_measured_on_which_machine_and_commit() -> None:
    assert report.measured(KEPT) == (
        "`make bench-x`: 67 minutes, 2026-11-26, on 2 cores of a CPU. Commit c0ffee1."
    )
    assert report.in_words(KEPT) == (
        "2026-11-26, on 2 cores of a CPU; Python 3.11.7; ray 2.60.0. Commit c0ffee1."
    )
    recorded = report.measured({**KEPT, "commit_from": "the commit that recorded it"})
    assert recorded.endswith(" Recorded by commit c0ffee1.")


def test_a_grid_keeps_the_order_of_its_cells_and_leaves_room_for_those_it_lacks() -> None:
    cells = {("b", "x"): "1", ("b", "y"): "2", ("a", "y"): "3"}
    assert report.grid("Row", cells).splitlines() == [
        "| Row | x | y |",
        "| -- | -- | -- |",
        "| b   | 1 | 2 |",
        "| a   |   | 3 |",
    ]
    assert report.grid("Row", {}) == "| Row |\n| -- |"


def test_a_page_is_filled_in_from_the_template_next_to_its_module(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("{goal[figure]:.2f} of {words}.\n")
    page = str(tmp_path / "page.py")
    assert report.filled(page, goal={"figure": 0.5}, words="all") == "0.50 of all.\n"
    with pytest.raises(KeyError, match="words"):
        report.filled(page, goal={"figure": 0.5})


GOALS = {
    "hits_8": report.goal(0.999, at_least=0.99),
    "hits_1000": report.goal(0.98, at_least=0.99),
    "ttft": {**report.goal(1.2, at_most=1.0), "range": [1.1, 1.3], "other": "smg"},
    "failed": report.goal(0, at_most=0),
}


def test_goals_of_a_group_are_a_row_with_the_worst_figure() -> None:
    rows = goal_groups.table(GOALS, {"Hits": "hits_.*"}).splitlines()[2:]
    assert [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows] == [
        ["Hits", "at least 0.99", "0.980", "1 of 2"],
        ["ttft", "at most 1", "1.200", "0 of 1"],
        ["failed", "at most 0", "0.000", "1 of 1"],
    ]
    assert goal_groups.met(GOALS) == "2 of 4"


def test_each_missed_goal_is_listed_in_full() -> None:
    rows = goal_groups.missed(GOALS, compared=lambda goal: goal.get("other", "")).splitlines()
    assert [[cell.strip() for cell in row.split("|")[1:-1]] for row in (rows[0], *rows[2:])] == [
        ["Missed goal", "Figure", "Wanted", "Range", "Compared with"],
        ["hits 1000", "0.9800", "at least 0.99", "", ""],
        ["ttft", "1.2000", "at most 1", "1.1000 to 1.3000", "smg"],
    ]
    assert goal_groups.missed({"failed": GOALS["failed"]}) == "No goal is missed."


def test_groups_with_a_missed_goal_may_be_left_to_the_table_of_missed_ones() -> None:
    rows = goal_groups.table(GOALS, {"Hits": "hits_.*"}, only_met=True).splitlines()[2:]
    assert rows == ["| failed | at most 0 | 0.000 | 1 of 1 |"]


@pytest.mark.parametrize(
    ("ratio", "change"), [(0.2252, "77% lower"), (3.9688, "297% higher"), (1.0, "0% higher")]
)
def test_a_ratio_is_written_as_a_change_in_percent(ratio: float, change: str) -> None:
    assert report.change(ratio) == change
    assert report.with_changes({"misses": {"figure": ratio}})["misses"]["change"] == change
