"""Processes that wait for a pool's next engine, as the files say it; without Ray, and without
vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray._private.worker import global_worker

from common.private_folder import made_private, user_folder
from deployments.app import placement_options
from deployments.engine import prestart
from deployments.engine.prestart import (
    ASKED_S,
    ASKS,
    ASKS_S,
    FORGOTTEN_S,
    HOOK,
    KEY,
    UNUSED_S,
    WANTED_S,
    Prestart,
)
from deployments.engine.vllm import core_process
from deployments.fleet.pool import Pool
from tests.waiting import cancelled, until

# Of the node, and how much of it may be taken.
MEMORY = 2**40
FULL = int(prestart.USED_AT_MOST * MEMORY)
RAYS = {name: getattr(prestart, name) for name in ("get_used_memory", "get_system_memory")}
CHANGES = {"OMP_NUM_THREADS": "1", "LD_PRELOAD": None}


class Raylet:
    """`begins`: what becomes of a worker process that it is asked for.

    `used_bytes`: of this node's memory. `look`: what a process in waiting does in its thread.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begins: Callable[[], None] = lambda: None
        self.used_bytes = 0
        self.look: Callable[[], None] = lambda: None

    def __call__(self, runtime_env: str) -> None:
        self.asked.append(runtime_env)
        self.begins()

    def thread(
        self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool
    ) -> SimpleNamespace:
        """In place of a thread: the test looks itself."""
        self.look = partial(target, *args)
        return SimpleNamespace(start=lambda: None)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of these tests' node and environment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(KEY, "environment")
    folder = prestart.folder_of("node")
    made_private(user_folder())
    make(folder)
    return folder


def make(folder: Path) -> None:
    """As a replica makes it."""
    folder.mkdir(parents=True)
    (folder / "wanted").touch()


@pytest.fixture
def raylet(monkeypatch: pytest.MonkeyPatch) -> Raylet:
    raylet = Raylet()
    monkeypatch.setattr(prestart, "prestart_worker", raylet)
    monkeypatch.setattr(core_process, "changes", lambda: CHANGES)
    monkeypatch.setattr(prestart, "_import_all", lambda: None)
    monkeypatch.setattr(prestart, "get_used_memory", lambda: raylet.used_bytes)
    monkeypatch.setattr(prestart, "get_system_memory", lambda: MEMORY)
    monkeypatch.setattr(prestart, "threading", SimpleNamespace(Thread=raylet.thread))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    of_ray = Mock(get_node_id=lambda: "node", get_runtime_env_string=lambda: "{}")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: of_ray)
    monkeypatch.setattr(os, "nice", lambda by: by)
    monkeypatch.setattr(os, "setpriority", lambda which, who, niceness: None)
    # what this process is when it begins; a lock that is dropped is released
    monkeypatch.setattr(prestart, "_has_begun", False)
    monkeypatch.setattr(prestart, "_lock", None)
    return raylet


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The processes of engines that began early."""
    began: list[object] = []
    monkeypatch.setattr(core_process, "keep_one", began.append)
    return began


async def test_one_comes_waits_and_is_taken(
    folder: Path, raylet: Raylet, kept: list[object]
) -> None:
    replica = Prestart(folder, "{}")
    raylet.begins = prestart.warm_up
    await replica.look()
    assert (raylet.asked, kept, prestart.is_waiting()) == (["{}"], [CHANGES], True)
    await replica.look()
    await Prestart(folder, "{}").look()
    assert len(raylet.asked) == 1
    assert prestart.begin()
    assert not prestart.is_waiting()
    await replica.look()
    assert len(raylet.asked) == 2


async def test_two_replicas_ask_for_one(folder: Path, raylet: Raylet) -> None:
    await Prestart(folder, "{}").look()
    await Prestart(folder, "{}").look()
    assert len(raylet.asked) == 1


async def test_a_process_that_was_not_requested_is_an_ordinary_one(
    folder: Path, raylet: Raylet, kept: list[object]
) -> None:
    prestart.warm_up()
    assert not kept and not prestart.begin()


async def test_a_second_one_does_not_wait(folder: Path, raylet: Raylet, kept: list[object]) -> None:
    for _ in range(2):
        (folder / "asked").write_text(json.dumps(CHANGES))
        prestart.warm_up()
    assert len(kept) == 1


async def test_requests_for_processes_stop_when_none_comes(
    folder: Path,
    raylet: Raylet,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = Prestart(folder, "{}")
    for _ in range(2 * ASKS):
        await replica.look()
        if (asked := folder / "asked").exists():
            long_ago = asked.stat().st_mtime - 2 * ASKED_S
            os.utime(asked, (long_ago, long_ago))
    assert len(raylet.asked) == ASKS
    assert caplog.text.count("which starts the ordinary way: 3 processes started") == 1
    later = Mock(time=time.time, monotonic=lambda: time.monotonic() + ASKS_S)
    monkeypatch.setattr(prestart, "time", later)
    await replica.look()
    assert len(raylet.asked) == ASKS + 1


async def test_one_that_is_ended_again_and_again_is_not_begun_for_ever(
    folder: Path, raylet: Raylet, kept: list[object]
) -> None:
    replica = Prestart(folder, "{}")
    raylet.begins = prestart.warm_up
    for _ in range(2 * ASKS):
        await replica.look()
        await replica.look()
        prestart.begin()  # to the others, as if its process had ended
    assert len(raylet.asked) == ASKS


async def test_no_process_is_requested_with_little_memory_left(
    folder: Path, raylet: Raylet, caplog: pytest.LogCaptureFixture
) -> None:
    raylet.used_bytes = FULL - prestart.MEMORY_BYTES + 1
    replica = Prestart(folder, "{}")
    await replica.look()
    assert not raylet.asked and "too little memory left for 1024 MiB more" in caplog.text
    raylet.used_bytes -= 1
    await replica.look()
    assert raylet.asked


class Ended(BaseException):
    pass


class Sleeps(BaseException):
    pass


def ends(
    raylet: Raylet,
    monkeypatch: pytest.MonkeyPatch,
    after_s: float = 0.0,
    meanwhile: Callable[[], object] | None = None,
) -> bool:
    """Whether this process ends itself when it looks, `after_s` from its beginning.

    `meanwhile`: what happens before it looks again.
    """
    times, changes = iter([0.0]), [meanwhile] if meanwhile else []

    def sleep(seconds: float) -> None:
        if not changes:
            raise Sleeps
        changes.pop()()

    with monkeypatch.context() as patch:
        patch.setattr(os, "_exit", Mock(side_effect=Ended))
        clocks = Mock(time=time.time, monotonic=lambda: next(times, after_s), sleep=sleep)
        patch.setattr(prestart, "time", clocks)
        try:
            raylet.look()
        except Ended:
            return True
        except Sleeps:
            return False
    return False


def wait(folder: Path) -> None:
    """This process is asked to wait for a replica."""
    (folder / "asked").write_text(json.dumps(CHANGES))
    prestart.warm_up()
    assert prestart.is_waiting()


def test_a_waiting_process_ends_when_unwanted_or_when_memory_is_short(
    folder: Path, raylet: Raylet, kept: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(folder)
    assert not ends(raylet, monkeypatch)
    raylet.used_bytes = FULL + 1
    assert ends(raylet, monkeypatch)
    raylet.used_bytes = FULL
    assert not ends(raylet, monkeypatch)
    long_ago = time.time() - WANTED_S
    os.utime(folder / "wanted", (long_ago, long_ago))
    assert ends(raylet, monkeypatch)
    with monkeypatch.context() as chosen:  # by Ray, and its actor has not begun yet
        core_worker = Mock()
        core_worker.get_actor_id().is_nil.return_value = False
        chosen.setattr(global_worker, "core_worker", core_worker, raising=False)
        assert not ends(raylet, monkeypatch)
    assert prestart.begin() and not ends(raylet, monkeypatch)


def test_a_waiting_process_ends_with_its_raylet(
    folder: Path, raylet: Raylet, kept: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(folder)
    monkeypatch.setattr(os, "getppid", Mock(side_effect=[4711, 1]))
    assert ends(raylet, monkeypatch)


def test_a_waiting_process_ends_when_an_imported_file_has_changed(
    folder: Path,
    raylet: Raylet,
    kept: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("deployments.of_this_test")
    module.__file__ = str(file := tmp_path / "of_this_test.py")
    file.touch()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    wait(folder)
    assert not ends(raylet, monkeypatch, meanwhile=lambda: None)
    assert ends(raylet, monkeypatch, meanwhile=lambda: os.utime(file, ns=(0, 0)))
    assert not ends(raylet, monkeypatch)
    file.unlink()
    assert ends(raylet, monkeypatch)


async def test_a_replica_that_cannot_look_serves_and_looks_again(
    folder: Path, raylet: Raylet, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ray = ray.get_runtime_context()
    monkeypatch.setattr(ray, "get_runtime_context", Mock(side_effect=[RuntimeError, of_ray]))
    for name in ("SETTLE_S", "PERIOD_S"):
        monkeypatch.setattr(prestart, name, 0.01)
    keeps = asyncio.create_task(prestart.keep())
    await until(lambda: raylet.asked)
    await cancelled(keeps)


def test_an_unused_process_ends(
    folder: Path, raylet: Raylet, monkeypatch: pytest.MonkeyPatch
) -> None:
    prestart.warm_up()
    assert not ends(raylet, monkeypatch, UNUSED_S - 1)
    assert ends(raylet, monkeypatch, UNUSED_S)


async def test_folders_of_lost_nodes_are_removed(folder: Path, raylet: Raylet) -> None:
    gone, other = folder.with_name("gone-environment"), folder.with_name("other-environment")
    for each in (gone, other):
        make(each)
    long_ago = time.time() - FORGOTTEN_S
    os.utime(gone / "wanted", (long_ago, long_ago))
    await Prestart(folder, "{}").look()
    assert set(folder.parent.iterdir()) == {folder, other}


async def test_used_memory_is_measured_on_this_machine(
    folder: Path, raylet: Raylet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, measure in RAYS.items():
        monkeypatch.setattr(prestart, name, measure)
    await Prestart(folder, "{}").look()
    assert bool(raylet.asked) != ("too little memory left" in caplog.text)


async def test_a_process_that_could_not_be_requested_is_requested_again(
    folder: Path, raylet: Raylet
) -> None:
    def gone() -> None:
        raise ConnectionError

    raylet.begins = gone
    replica = Prestart(folder, "{}")
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await replica.look()
    assert len(raylet.asked) == 2


def test_the_hook_of_a_worker_raises_nothing(
    raylet: Raylet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(folder: Path) -> None:
        raise PermissionError(folder)

    monkeypatch.setattr(prestart, "made_private", fails)
    with monkeypatch.context() as patch:
        patch.setattr(ray, "is_initialized", lambda: False)
        prestart.warm_up()
    assert not caplog.text
    prestart.warm_up()
    assert "no engine starts from this process" in caplog.text


def test_only_engines_of_a_pool_that_wants_it_have_the_hook() -> None:
    def environment(**more: Any) -> dict[str, str]:
        pool = Pool.model_validate({"model": "embedded", "resources": {"gpus": 1}, **more})
        of: dict[str, str] = placement_options(pool)["ray_actor_options"]["runtime_env"]["env_vars"]
        return of

    assert not {HOOK, KEY} & environment().keys()
    asked = environment(prestart=True)
    assert asked[HOOK] == "deployments.engine.prestart.warm_up"
    # another environment needs another process
    assert asked[KEY] != environment(prestart=True, env={"OMP_NUM_THREADS": "2"})[KEY]
    assert asked[KEY] == environment(prestart=True)[KEY]
    spans_nodes = {"pipeline_parallel_size": 2}
    assert HOOK not in environment(prestart=True, engine_args=spans_nodes, resources={"gpus": 2})
