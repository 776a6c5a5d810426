"""What a machine lacks for the tests: skipped here, failed where CI is set, reported once at the
end.

python -m tests.missing FILE    what the sessions of one `make test` skipped, in one line
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.harness.results import public_data
from common.errors import Problem
from tests import programs

# Names the file in which the sessions of one `make test` note what they skipped.
NOTED_IN = "ANTEFIX_SKIPPED_TESTS"


def program(name: str) -> str:
    """The path of one of `programs.NEEDED`."""
    return programs.find(name) or missing(f"{name} is not installed ({programs.remedy(name)})")


def data(name: str) -> Path:
    """One of `public_data.SOURCES`. Where it is unavailable, CI fails only if a folder was named:
    no command that it could run installs what no network reaches."""
    try:
        return public_data.find(name)
    except Problem as problem:
        why = f"{problem.message}: {problem.remedy}"
    if os.environ.get("ANTEFIX_TEST_DATA"):
        missing(why)
    pytest.skip(why)


def missing(why: str) -> NoReturn:
    """`why`: what is missing, and in parentheses or after a colon how to have it."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}; CI is set, so this test may not be skipped", pytrace=False)
    pytest.skip(why)


def note(skipped: Mapping[str, int]) -> None:
    """At the end of a session: reasons, and how many tests each held back."""
    if file := os.environ.get(NOTED_IN):
        with Path(file).open("a") as lines:
            lines.write(json.dumps(skipped) + "\n")
    elif skipped:
        print(closing_line(skipped))


def closing_line(skipped: Mapping[str, int]) -> str:
    parts = [
        f"{count} test{'s' if count > 1 else ''} because {why}"
        for why, count in sorted(skipped.items(), key=lambda item: -item[1])
    ]
    return f"Skipped: {'; '.join(parts)}."


def main(file: Path) -> None:
    noted: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        noted.update(json.loads(line))
    if noted:
        print(closing_line(noted))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
