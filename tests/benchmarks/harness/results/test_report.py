"""What a result names, and how figures become parts of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.results import report


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
    "commit": "c0ffee1c0ffee",
    "dirty": False,
    "date": "2026-11-26",
    "cpu": "a CPU",
    "cores": 2,
    "python": "3.11.7",
    "versions": {"ray": "2.60.0"},
}


def test_a_page_says_what_was_measured_where_and_of_which_commit() -> None:
    assert report.in_short(KEPT) == "2026-11-26, on 2 cores of a CPU. Commit c0ffee1."
    assert report.in_words(KEPT) == (
        "2026-11-26, on 2 cores of a CPU; Python 3.11.7; ray 2.60.0. Commit c0ffee1."
    )
    recorded = report.in_short({**KEPT, "commit_from": "the commit that recorded it"})
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


@pytest.mark.parametrize(
    ("ratio", "change"),
    [
        (0.2252, "77% lower"),
        (3.9688, "297% higher"),
        (0.9953, "less than 1% lower"),
        (1.004, "less than 1% higher"),
        (1.0, "0% higher"),
    ],
)
def test_a_ratio_is_written_as_a_change_in_percent(ratio: float, change: str) -> None:
    assert report.change(ratio) == change
    assert report.with_changes({"misses": {"figure": ratio}})["misses"]["change"] == change
