"""Who waits for a pool's next engine, as the files say it; without Ray, and without vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray._private.worker import global_worker

from deployments.app import placement_options
from deployments.engine import prestart
from deployments.engine.prestart import (
    ASKED_S,
    ASKS,
    ASKS_S,
    FORGOTTEN_S,
    HOOK,
    KEY,
    WANTED_S,
    Prestart,
)
from deployments.engine.vllm import core_process
from deployments.fleet.pool import Pool
from tests.waiting import cancelled, until

CHANGES = {"OMP_NUM_THREADS": "1", "LD_PRELOAD": None}


class Raylet:
    """`begins`: what becomes of a worker process that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begins: Any = lambda: None

    def __call__(self, runtime_env: str) -> None:
        self.asked.append(runtime_env)
        self.begins()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of these tests' node and environment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(KEY, "environment")
    folder = prestart.folder_of("node")
    prestart._make(folder)
    return folder


@pytest.fixture
def raylet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Raylet]:
    raylet = Raylet()
    monkeypatch.setattr(prestart, "prestart_worker", raylet)
    monkeypatch.setattr(core_process, "changes", lambda: CHANGES)
    monkeypatch.setattr(prestart, "_import_all", lambda: None)
    monkeypatch.setattr(prestart, "_holds", lambda more_bytes: True)
    monkeypatch.setattr(os, "nice", lambda by: by)
    monkeypatch.setattr(os, "setpriority", lambda which, who, niceness: None)
    monkeypatch.setattr(prestart, "_has_begun", False)
    yield raylet
    if prestart._lock is not None:
        prestart._lock.close()
    monkeypatch.setattr(prestart, "_lock", None)


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
    raylet.begins = lambda: prestart._wait_in(folder)
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


async def test_a_process_that_nobody_asked_for_is_an_ordinary_one(
    folder: Path, raylet: Raylet, kept: list[object]
) -> None:
    prestart._wait_in(folder)
    assert not kept and not prestart.begin()


async def test_a_second_one_does_not_wait(folder: Path, raylet: Raylet, kept: list[object]) -> None:
    for _ in range(2):
        (folder / "asked").write_text(json.dumps(CHANGES))
        prestart._wait_in(folder)
    assert len(kept) == 1


async def test_nobody_is_asked_for_for_ever_where_none_comes(
    folder: Path, raylet: Raylet, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Prestart(folder, "{}")
    for _ in range(2 * ASKS):
        await replica.look()
        if (asked := folder / "asked").exists():
            long_ago = asked.stat().st_mtime - 2 * ASKED_S
            os.utime(asked, (long_ago, long_ago))
    assert len(raylet.asked) == ASKS
    assert caplog.text.count("which starts the ordinary way: 3 that were begun") == 1
    replica._asked_at = [at - ASKS_S for at in replica._asked_at]
    await replica.look()
    assert len(raylet.asked) == ASKS + 1


async def test_one_that_is_ended_again_and_again_is_not_begun_for_ever(
    folder: Path, raylet: Raylet, kept: list[object]
) -> None:
    replica = Prestart(folder, "{}")
    raylet.begins = lambda: prestart._wait_in(folder)
    for _ in range(2 * ASKS):
        await replica.look()
        await replica.look()
        assert prestart._lock is not None
        prestart._lock.close()
    assert len(raylet.asked) == ASKS


async def test_where_little_memory_is_left_nobody_is_asked_for(
    folder: Path,
    raylet: Raylet,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(prestart, "_holds", lambda more_bytes: more_bytes < prestart.MEMORY_BYTES)
    replica = Prestart(folder, "{}")
    await replica.look()
    assert not raylet.asked and "too little memory left for 1024 MiB more" in caplog.text
    monkeypatch.setattr(prestart, "_holds", lambda more_bytes: True)
    await replica.look()
    assert raylet.asked


class Ended(BaseException):
    pass


def ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this process, as it is, would end itself at once."""

    def end(code: int) -> None:
        raise Ended

    def sleep(seconds: float) -> None:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(os, "_exit", end)
        clocks = Mock(time=time.time, monotonic=time.monotonic, sleep=sleep)
        patch.setattr(prestart, "time", clocks)
        try:
            prestart._end_unless_needed(folder)
        except Ended:
            return True
        except TimeoutError:
            return False
    return False


def test_who_waits_ends_where_it_is_not_wanted_or_memory_is_wanted_more(
    folder: Path, raylet: Raylet, kept: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "asked").write_text(json.dumps(CHANGES))
    prestart._wait_in(folder)
    assert prestart.is_waiting() and not ends(folder, monkeypatch)
    monkeypatch.setattr(prestart, "_holds", lambda more_bytes: False)
    assert ends(folder, monkeypatch)
    monkeypatch.setattr(prestart, "_holds", lambda more_bytes: True)
    long_ago = time.time() - WANTED_S
    os.utime(folder / "wanted", (long_ago, long_ago))
    assert ends(folder, monkeypatch)
    with monkeypatch.context() as chosen:  # by Ray, and its actor has not begun yet
        core_worker = Mock()
        core_worker.get_actor_id().is_nil.return_value = False
        chosen.setattr(global_worker, "core_worker", core_worker, raising=False)
        assert not ends(folder, monkeypatch)
    assert prestart.begin() and not ends(folder, monkeypatch)


def test_who_waits_ends_with_its_raylet_or_where_it_is_outdated(
    folder: Path, raylet: Raylet, kept: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "asked").write_text(json.dumps(CHANGES))
    prestart._wait_in(folder)
    with monkeypatch.context() as orphaned:
        orphaned.setattr(os, "getppid", Mock(side_effect=[4711, 1]))
        assert ends(folder, monkeypatch)
    monkeypatch.setattr(prestart, "_is_as_on_disk", lambda seen: False)
    assert ends(folder, monkeypatch)


def test_who_has_imported_what_has_changed_since_is_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("deployments.of_this_test")
    module.__file__ = str(file := tmp_path / "of_this_test.py")
    file.touch()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    seen: dict[str, int] = {}
    assert prestart._is_as_on_disk(seen) and prestart._is_as_on_disk(seen)
    os.utime(file, ns=(0, 0))
    assert not prestart._is_as_on_disk(seen)
    file.unlink()
    assert not prestart._is_as_on_disk({})


async def test_a_replica_that_cannot_look_serves_and_looks_again(
    folder: Path, raylet: Raylet, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ray = Mock(get_node_id=lambda: "node", get_runtime_env_string=lambda: "{}")
    monkeypatch.setattr(ray, "get_runtime_context", Mock(side_effect=[RuntimeError, of_ray]))
    for name in ("SETTLE_S", "PERIOD_S"):
        monkeypatch.setattr(prestart, name, 0.01)
    keeps = asyncio.create_task(prestart.keep())
    await until(lambda: raylet.asked)
    await cancelled(keeps)


def test_a_process_that_nobody_uses_ends(
    folder: Path, raylet: Raylet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not ends(folder, monkeypatch)
    monkeypatch.setattr(prestart, "UNUSED_S", 0.0)
    assert ends(folder, monkeypatch)


async def test_folders_of_nodes_that_are_gone_are_taken_away(folder: Path, raylet: Raylet) -> None:
    gone, other = folder.with_name("gone-environment"), folder.with_name("other-environment")
    for each in (gone, other):
        prestart._make(each)
    long_ago = time.time() - FORGOTTEN_S
    os.utime(gone / "wanted", (long_ago, long_ago))
    await Prestart(folder, "{}").look()
    assert set(folder.parent.iterdir()) == {folder, other}


def test_what_is_taken_is_counted_in_the_memory_of_this_machine() -> None:
    assert prestart._holds(0) or not prestart._holds(prestart.MEMORY_BYTES)
    assert not prestart._holds(2**60)


async def test_who_could_not_be_asked_for_is_asked_for_again(folder: Path, raylet: Raylet) -> None:
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
    monkeypatch.setattr(prestart, "_end_unless_needed", lambda folder: None)
    prestart.warm_up()
    assert not ray.is_initialized() and not caplog.text
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", Mock())
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
