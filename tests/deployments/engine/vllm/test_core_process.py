"""The process of an engine: real processes that run other code."""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

from deployments.engine.vllm import core_process
from deployments.engine.vllm.core_process import SpawnContext
from tests.fakes.core_target import write_process_facts

WITHIN_S = 60.0
SPAWN = multiprocessing.get_context("spawn")


def started(target: Any = write_process_facts, **kwargs: Any) -> Any:
    """Start a process as vLLM starts its engine's."""
    process = SpawnContext(SPAWN).Process(target=target, name="EngineCore", kwargs=kwargs)
    process.start()
    return process


def facts_of_process(process: Any, file: Path) -> dict[str, Any]:
    assert connection.wait([process.sentinel], WITHIN_S)
    found: dict[str, Any] = json.loads(file.read_text())
    assert found["pid"] == process.pid
    return found


def test_an_engine_process_has_the_environment_that_it_has_without_antefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_TEST", "of now")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    process = started(file=str(tmp_path / "ours"), ends_with=3)
    ours = facts_of_process(process, tmp_path / "ours")
    process.join()
    assert process.exitcode == 3 and not process.is_alive()
    assert process.name == "EngineCore"
    own = SPAWN.Process(target=write_process_facts, kwargs={"file": str(tmp_path / "own")})
    own.start()
    theirs = facts_of_process(own, tmp_path / "own")
    for what in ("environment", "path", "gc"):
        assert ours[what] == theirs[what]
    assert ours["environment"]["ANTEFIX_TEST"] == "of now" and ours["gc"]
    # the collector was off while the first one was loaded
    assert ours["frozen"] > 0 and theirs["frozen"] == 0


def test_an_engine_may_inherit_arguments_that_no_pipe_can_carry(tmp_path: Path) -> None:
    queue = SPAWN.Queue()  # which its last reference removes, even if no process has opened it yet
    process = started(write_process_facts_with_queue, queue=queue, file=str(tmp_path / "told"))
    facts_of_process(process, tmp_path / "told")


def write_process_facts_with_queue(*, queue: Any, file: str) -> None:
    """A queue reaches a new process through its inheritance alone."""
    write_process_facts(file)


def test_garbage_collection_skips_imported_objects() -> None:
    gc.enable()
    before = gc.get_freeze_count()
    try:
        with core_process.without_gc():
            made: list[list[int]] = [[n] for n in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(made)
    finally:
        gc.unfreeze()
