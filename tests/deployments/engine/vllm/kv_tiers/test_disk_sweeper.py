"""The folder of a disk tier stays below its size, and loses the least recently used files."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.engine.vllm.kv_tiers import disk_sweeper
from deployments.engine.vllm.kv_tiers.disk_sweeper import UNFINISHED_S, sweep
from tests.waiting import until

HOUR_S = 3600.0
NOW = 1_000_000_000.0
SIZE = 1000


def files(folder: Path, count: int, now: float = NOW) -> list[Path]:
    """The first is the least recently used one, one second before the next."""
    made = []
    for index in range(count):
        path = folder / f"part{index % 2}" / f"{index}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(SIZE))
        os.utime(path, (now - count + index,) * 2)
        made.append(path)
    return made


def test_nothing_is_removed_below_the_size(tmp_path: Path) -> None:
    made = files(tmp_path, 10)
    assert sweep(tmp_path, 10 * SIZE, HOUR_S, NOW) == []
    assert all(path.exists() for path in made)


def test_the_least_recently_used_files_are_removed_first(tmp_path: Path) -> None:
    made = files(tmp_path, 10)
    os.utime(made[0], (NOW, NOW))
    assert sweep(tmp_path, 8 * SIZE, HOUR_S, NOW) == made[1:4]
    assert sum(path.exists() for path in made) == 7  # 95 % of eight


def test_a_file_that_was_not_used_for_long_is_removed(tmp_path: Path) -> None:
    made = files(tmp_path, 3)
    os.utime(made[1], (NOW - 2 * HOUR_S,) * 2)
    assert sweep(tmp_path, 100 * SIZE, HOUR_S, NOW) == [made[1]]


def test_what_a_crash_left_unfinished_is_removed_and_what_is_written_now_is_not(
    tmp_path: Path,
) -> None:
    new, old = tmp_path / "a.bin_1.tmp", tmp_path / "b.bin_2.tmp"
    for path, ago_s in ((new, 1.0), (old, UNFINISHED_S + 1)):
        path.write_bytes(b"")
        os.utime(path, (NOW - ago_s,) * 2)
    assert sweep(tmp_path, 100, HOUR_S, NOW) == [old]


def test_one_process_sweeps_a_folder_at_a_time(tmp_path: Path) -> None:
    files(tmp_path, 10)
    with (tmp_path / ".sweeping").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweep(tmp_path, SIZE, HOUR_S, NOW) == []
    assert len(sweep(tmp_path, SIZE, HOUR_S, NOW)) == 10


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert sweep(tmp_path / "gone", SIZE, HOUR_S, NOW) == []


def test_a_file_that_cannot_be_removed_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = files(tmp_path, 2)
    unlink = Path.unlink

    def refused(path: Path) -> None:
        if path == made[0]:
            raise PermissionError(str(path))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", refused)
    assert sweep(tmp_path, 0, HOUR_S, NOW) == [made[1]]


def count(folder: Path) -> int:
    return len(list(folder.rglob("*.bin")))


@pytest.fixture
def sweeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    files(tmp_path, 40, time.time())
    process = subprocess.Popen(
        [sys.executable, disk_sweeper.__file__, str(tmp_path), str(20 * SIZE), str(HOUR_S)],
        stdin=subprocess.PIPE,
    )
    with process:
        yield process
        process.kill()


async def test_the_process_sweeps_until_its_engine_ends(
    sweeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert sweeper.stdin is not None
    await until(lambda: count(tmp_path) == 19)
    sweeper.stdin.close()
    assert sweeper.wait(30) == 0


async def test_a_process_that_was_killed_in_a_sweep_is_continued_by_the_next_one(
    sweeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    await until(lambda: count(tmp_path) < 40)
    sweeper.send_signal(signal.SIGKILL)
    sweeper.wait(30)
    sweep(tmp_path, 20 * SIZE, HOUR_S, time.time())
    assert count(tmp_path) <= 20
