import os
import subprocess
import time
from pathlib import Path

from common.file_lock import only_one


def test_a_child_that_still_writes_keeps_the_turn(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with only_one(lock, lambda: None) as held:
        child = subprocess.Popen(["sleep", "0.5"], pass_fds=(held,))
    waited: list[bool] = []
    begin = time.monotonic()
    with only_one(lock, lambda: waited.append(True)):
        assert child.wait(timeout=1) == 0
    assert waited == [True]
    assert time.monotonic() - begin < 5


def test_the_turn_ends_with_the_block(tmp_path: Path) -> None:
    waited: list[bool] = []
    for _ in range(2):
        with only_one(tmp_path / "lock", lambda: waited.append(True)) as held:
            os.fstat(held)
    assert waited == []
