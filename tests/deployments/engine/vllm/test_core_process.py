"""The process of an engine, begun early or not: real processes that run other code."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

from deployments.engine import processes
from deployments.engine.vllm import core_process
from deployments.engine.vllm.core_process import CoreProcess, _Context
from tests.fakes.core_target import tell, wait_for_ever
from tests.waiting import until

# In no process that was only begun.
EARLY = "colorsys"
METRICS = "PROMETHEUS_MULTIPROC_DIR"
WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def _none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is still kept after the test ends when nothing refers to it."""
    monkeypatch.setattr(core_process, "_kept", None)


def begun(target: Any = tell, **kwargs: Any) -> Any:
    """As vLLM begins its engine."""
    context = _Context(multiprocessing.get_context("spawn"))
    process = context.Process(target=target, name="EngineCore", kwargs=kwargs)
    process.start()
    return process


def told(process: Any, file: Path) -> dict[str, Any]:
    assert connection.wait([process.sentinel], WITHIN_S)
    found: dict[str, Any] = json.loads(file.read_text())
    assert found["pid"] == process.pid
    return found


def kept(changes: core_process.Changes, *modules: str) -> CoreProcess:
    return core_process.keep_one(changes, modules)


def test_an_engine_finds_what_it_would_find_if_vllm_had_begun_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_TEST", "of now")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    process = begun(file=str(tmp_path / "ours"), ends_with=3)
    ours = told(process, tmp_path / "ours")
    process.join()
    assert process.exitcode == 3 and not process.is_alive()
    assert process.name == "EngineCore"
    own = multiprocessing.get_context("spawn").Process(
        target=tell, kwargs={"file": str(tmp_path / "own")}
    )
    own.start()
    theirs = told(own, tmp_path / "own")
    for what in ("environment", "path", "gc"):
        assert ours[what] == theirs[what]
    assert ours["environment"]["ANTEFIX_TEST"] == "of now" and ours["gc"]


def test_one_that_was_kept_has_imported_before_and_finds_the_environment_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = kept({"OMP_NUM_THREADS": "3", METRICS: "/of/the/replica/before"}, EARLY)
    assert os.environ.get("OMP_NUM_THREADS") != "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv(METRICS, str(tmp_path))
    process = begun(file=str(tmp_path / "told"))
    assert process.pid == waits.process.pid
    found = told(process, tmp_path / "told")
    assert EARLY in found["modules"] and found["gc"]
    assert found["environment"]["OMP_NUM_THREADS"] == "3"
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == "5"
    assert found["environment"][METRICS] == str(tmp_path)
    assert core_process.changes()["OMP_NUM_THREADS"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in core_process.changes()
    # it was for one engine
    assert begun(file=str(tmp_path / "next")).pid != process.pid


@pytest.mark.parametrize(
    "does",
    [
        lambda patch, waits: patch.setenv("LD_PRELOAD", ""),
        lambda patch, waits: patch.setenv(METRICS, "/where/it/had/none"),
        lambda patch, waits: os.kill(waits.process.pid, signal.SIGKILL),
        lambda patch, waits: os.kill(waits.process.pid, signal.SIGSTOP),
        lambda patch, waits: patch.setattr(waits.process, "_name", "EngineCore_DP1"),
    ],
    ids=["another environment", "metrics in files", "it was killed", "it hangs", "another name"],
)
def test_where_the_kept_one_does_not_fit_the_engine_begins_all_the_same(
    does: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_process, "QUIET_S", 0.2)
    waits = kept({}, EARLY)
    pid = waits.process.pid
    does(monkeypatch, waits)
    process = begun(file=str(tmp_path / "told"))
    assert process.pid != pid
    assert EARLY not in told(process, tmp_path / "told")["modules"]
    assert processes.state(pid or 0) in "XZ"


def test_one_that_cannot_import_is_of_no_use(tmp_path: Path) -> None:
    waits = kept({}, "no.such.module")
    assert waits.why_not() == "it has not imported vLLM"
    told(begun(file=str(tmp_path / "told")), tmp_path / "told")


def test_arguments_that_no_pipe_can_carry_are_left_to_vllm(tmp_path: Path) -> None:

    context = multiprocessing.get_context("spawn")
    process = begun(print_all, queue=context.Queue(), file=str(tmp_path / "told"))
    told(process, tmp_path / "told")


def print_all(*, queue: Any, file: str) -> None:
    """A queue reaches a new process through its inheritance alone."""
    tell(file)


async def test_a_kept_process_ends_with_its_owner(tmp_path: Path) -> None:
    waits = CoreProcess({}, [EARLY])
    assert waits.why_not() == ""
    process = waits.process
    del waits
    await until(lambda: not process.is_alive())


def test_an_engine_continues_after_its_starter_closes_the_pipe() -> None:
    process = begun(wait_for_ever)
    assert not connection.wait([process.sentinel], 0.5)
    process.terminate()
    assert connection.wait([process.sentinel], WITHIN_S)
    process.join()
    assert process.exitcode == -signal.SIGTERM


def test_the_collector_leaves_what_was_imported_alone() -> None:
    gc.enable()
    before = gc.get_freeze_count()
    try:
        with core_process.without_gc():
            made: list[list[int]] = [[n] for n in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(made)
    finally:
        gc.unfreeze()
