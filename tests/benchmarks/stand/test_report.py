"""The command that a result names repeats its run, on any machine."""

from __future__ import annotations

import pytest

from benchmarks.stand import report


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
        (["--keep", "--keep", "--write"], 'make bench-overload ARGS="--write"'),
    ],
)
def test_a_result_names_its_command_without_files_of_the_machine(
    given: list[str], named: str
) -> None:
    assert report.command("overload", given) == named
