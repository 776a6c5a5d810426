"""`make test` and the rest together run every test once, and a part that fails is seen."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.parts import PARTS, PROSE, ROOT, SECOND_QUEUE, Part
from tests.run import ENDS, Run, main
from tests.some import some
from tests.waiting import until

NO_TIMES: dict[str, dict[str, float]] = {"parts": {}, "tests": {}}
# What each level of marks implies: tests of fleets are real, and so is the core.
IMPLIED = {"cluster": "real", "core": "cluster"}
MARKS = ("real", "cluster", "core", "kubernetes")
PLACES = ("tests/test_prose.py", "tests/test_names.py", *SECOND_QUEUE)


def runs(part: Part, marks: Collection[str], path: str) -> bool:
    """Whether the part's command runs a test with these marks in a file at this path."""
    if part.name == "lint":
        return path in PROSE
    command = list(part.command)
    expression = Expression.compile(command[command.index("-m", 2) + 1])

    def has(name: str, /, **_: str | int | bool | None) -> bool:
        return name in marks

    ignored = [word.removeprefix("--ignore=") for word in command if word[:9] == "--ignore="]
    given = [word for word in command if word.startswith("tests/")]
    return expression.evaluate(has) and path not in ignored and (not given or path in given)


def kinds_of_tests() -> Iterator[tuple[tuple[str, ...], str]]:
    for given in product((False, True), repeat=len(MARKS)):
        marks = tuple(mark for mark, has in zip(MARKS, given, strict=True) if has)
        whole = all(IMPLIED[mark] in marks for mark in marks if mark in IMPLIED)
        if whole and not {"real", "kubernetes"} <= {*marks}:
            yield from ((marks, path) for path in PLACES if path not in PROSE or not marks)


@pytest.mark.parametrize(("marks", "path"), [*kinds_of_tests()], ids=str)
def test_every_test_is_in_one_part(marks: tuple[str, ...], path: str) -> None:
    parts = [part.name for part in (*PARTS["test"], *PARTS["rest"]) if runs(part, marks, path)]
    assert len(parts) == 1


def test_no_part_runs_tests_that_need_pods_on_kubernetes() -> None:
    parts = (*PARTS["test"], *PARTS["rest"])
    assert not any(runs(part, ["kubernetes_long"], "tests/test_names.py") for part in parts)


def test_the_core_is_on_the_fleet_of_tests_real_and_on_no_other() -> None:
    files = [
        file for file in (ROOT / "tests").rglob("test_*.py") if "mark.core" in file.read_text()
    ]
    assert {file.parent.name for file in some(files)} - {"tests"} == {"real"}


def test_every_path_of_the_second_queue_exists() -> None:
    assert [path for path in some(SECOND_QUEUE) if not (ROOT / path).exists()] == []


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_a_part_starts_when_what_it_waits_for_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "order"
    writes = "import sys; open({!r}, 'a').write({!r})"
    parts = (
        Part("first", python(f"{writes.format(str(file), 'first ')}; sys.exit(3)"), 1),
        Part("then", python(writes.format(str(file), "then")), 1, after=("first",)),
    )
    assert Run(parts, tmp_path, NO_TIMES).finish(look_s=0.01) == 1
    assert file.read_text() == "first then"


def test_a_part_that_can_never_start_does_not_pass(tmp_path: Path) -> None:
    parts = (Part("never", python("0"), 1, after=("nobody",)),)
    with pytest.raises(AssertionError, match="waits for one that is not in this run"):
        Run(parts, tmp_path, NO_TIMES).finish(look_s=0.01)


def test_a_part_that_fails_fails_the_run_and_its_log_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = (
        Part("good", python("print('nothing to see')"), 1),
        Part("bad", python("print('what went wrong'); raise SystemExit(2)"), 1),
    )
    handlers = {of: signal.getsignal(of) for of in ENDS}
    try:
        assert main(parts, tmp_path) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    out = capfd.readouterr().out
    assert "what went wrong" in out.partition("The log of bad")[2]
    assert "nothing to see" not in out
    assert re.search(r"After 0:\d\d: bad failed\.", out)


def test_the_failed_tests_are_named_once_more_after_the_logs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    notes = f"open({str(tmp_path / 'bad.jsonl')!r}, 'a').write"
    lines = [{"found": ["a", "b"]}, {"test": "b", "s": 1.0, "failed": True}]
    code = "".join(f"{notes}({json.dumps(line) + chr(10)!r}); " for line in lines)
    handlers = {of: signal.getsignal(of) for of in ENDS}
    try:
        assert main((Part("bad", python(f"{code}raise SystemExit(1)"), 1),), tmp_path) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    out = capfd.readouterr().out
    assert "FAILED b (bad)" in out.partition("The log of bad")[2]


@pytest.mark.parametrize("number", ENDS)
async def test_an_interrupt_ends_every_part_after_it_has_cleaned_up(
    tmp_path: Path, number: signal.Signals
) -> None:
    waits = (
        "import pathlib, sys, time\n"
        "name = pathlib.Path(sys.argv[1])\n"
        "try:\n    name.with_suffix('.began').touch(); time.sleep(600)\n"
        "finally:\n    name.with_suffix('.cleaned').touch()\n"
    )
    names = [tmp_path / name for name in ("one", "other")]
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.run import main; from tests.parts import Part\n"
        f"parts = [Part(n[-3:], (sys.executable, '-c', {waits!r}, n), 1) for n in sys.argv[2:]]\n"
        "never = Part('never', ('touch', sys.argv[1] + '/never'), 1, after=(parts[0].name,))\n"
        "sys.exit(main((*parts, never), Path(sys.argv[1])))\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path), *map(str, names)]
    run = await asyncio.create_subprocess_exec(*arguments, cwd=ROOT)
    await until(lambda: all(name.with_suffix(".began").exists() for name in names))
    run.send_signal(number)
    assert await run.wait() == 128 + signal.SIGINT
    assert all(name.with_suffix(".cleaned").exists() for name in some(names))
    assert not (tmp_path / "never").exists()
