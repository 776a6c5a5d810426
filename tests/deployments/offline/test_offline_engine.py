"""How the parent of an engine without a server takes what its child does; no vLLM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import Problem
from deployments.offline import offline_engine
from deployments.offline.offline_engine import OfflineEngine

Start = Callable[[str], OfflineEngine]
Children = list["subprocess.Popen[str]"]


@pytest.fixture
def children() -> Children:
    return []


@pytest.fixture
def started(tmp_path: Path, children: Children) -> Iterator[Start]:
    """An engine whose child is this Python program."""
    engines = []

    def start(program: str) -> OfflineEngine:
        log = tmp_path / "log"
        with log.open("w") as said:
            child = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        children.append(child)
        engines.append(OfflineEngine(child, "org/model", log))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def test_a_dead_child_is_reported_with_its_last_output(started: Start, tmp_path: Path) -> None:
    engine = started("raise MemoryError('no room for the weights')")
    with pytest.raises(Problem) as caught:
        engine.text([[1]])
    assert "the engine of org/model failed" in caught.value.message
    assert "MemoryError: no room for the weights" in caught.value.message
    assert str(tmp_path / "log") in caught.value.remedy


def test_an_error_of_the_child_is_reported_and_the_child_continues(started: Start) -> None:
    engine = started(
        "import sys\n"
        "for line, name, said in zip(sys.stdin, ('error', 'result'), ('ValueError: no', ['Hi'])):\n"
        "    import json; print(json.dumps({name: said}), flush=True)"
    )
    with pytest.raises(Problem, match="ValueError: no"):
        engine.text([[1]])
    assert engine.text([[1]]) == ["Hi"]


def test_a_child_ends_with_its_engine(started: Start, children: Children) -> None:
    started("import sys; sys.stdin.read()").close()
    assert children[0].returncode == 0


def test_a_child_that_does_not_exit_is_killed(
    started: Start, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline_engine, "SECONDS_TO_END", 0.1)
    started("import time; time.sleep(1000)").close()
    assert children[0].returncode < 0
