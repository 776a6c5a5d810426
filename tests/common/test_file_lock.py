import os
import subprocess
from pathlib import Path

from common.file_lock import only_one


def test_a_child_that_still_writes_keeps_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with only_one(lock, lambda: None) as held:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held,))
    assert child.stdin is not None
    waited: list[bool] = []

    def wait() -> None:
        waited.append(child.poll() is None)
        child.stdin.close()  # type: ignore[union-attr]  # it ends

    with only_one(lock, wait):
        assert child.wait(timeout=60) == 0
    assert waited == [True]


def test_the_lock_is_released_at_the_end_of_the_block(tmp_path: Path) -> None:
    waited: list[bool] = []
    for _ in range(2):
        with only_one(tmp_path / "lock", lambda: waited.append(True)) as held:
            os.fstat(held)
    assert waited == []
