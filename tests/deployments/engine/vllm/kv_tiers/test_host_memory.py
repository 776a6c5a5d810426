"""Shared memory of host tiers does not outlive the engines that were killed during their start."""

from __future__ import annotations

import mmap
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.engine.vllm.kv_tiers.host_tier import ABANDONED_S, _remove_abandoned


@pytest.fixture
def memory() -> Iterator[Path]:
    path = Path(f"/dev/shm/vllm_offload_{secrets.token_hex(8)}.mmap")
    path.write_bytes(bytes(mmap.PAGESIZE))
    yield path
    path.unlink(missing_ok=True)


def test_memory_that_no_process_has_is_removed(memory: Path) -> None:
    _remove_abandoned(time.time() + ABANDONED_S + 1)
    assert not memory.exists()


def test_new_memory_is_left_for_its_engine(memory: Path) -> None:
    _remove_abandoned(time.time())
    assert memory.exists()


def test_memory_that_a_process_has_mapped_is_left(memory: Path) -> None:
    with memory.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
        _remove_abandoned(time.time() + ABANDONED_S + 1)
        assert memory.exists()
