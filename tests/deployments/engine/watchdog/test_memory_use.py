"""Whether a replica was killed for lack of memory, from Linux's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.engine.watchdog.memory_use import MemoryLook, MemoryWatch, look


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


MACHINE = {
    "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n",
    "proc/vmstat": "nr_free_pages 1\noom_kill 7\n",
}
V2 = {
    "proc/self/cgroup": "0::/pod\n",
    "sys/fs/cgroup/pod/memory.events": "low 0\noom 1\noom_kill 2\noom_group_kill 0\n",
    "sys/fs/cgroup/pod/memory.current": "990\n",
    "sys/fs/cgroup/pod/memory.max": "1000\n",
    "sys/fs/cgroup/pod/memory.stat": "anon 500\ninactive_file 90\n",
}
V1 = {
    "proc/self/cgroup": "5:cpu,memory:/pod\n0::/\n",
    "sys/fs/cgroup/memory/pod/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, MemoryLook(0, 0.0)),
        (MACHINE, MemoryLook(7, 0.6)),
        # what the files of others use is not the cgroup's, and its own cache can be dropped
        (MACHINE | V2, MemoryLook(2, 0.9)),
        (MACHINE | V2 | {"sys/fs/cgroup/pod/memory.max": "max\n"}, MemoryLook(2, 0.6)),
        (MACHINE | V1, MemoryLook(3, 0.6)),
    ],
)
def test_memory_use_is_read_from_the_cgroup_before_the_machine(
    tmp_path: Path, files: dict[str, str], found: MemoryLook
) -> None:
    assert look(written(tmp_path, files)) == found


def test_memory_use_of_this_machine_is_readable() -> None:
    assert 0.0 < look().used < 1.0


@pytest.mark.parametrize(
    ("looks", "ran_out"),
    [
        ([], False),
        ([(0, 0.5)], False),
        ([(4, 0.5), (4, 0.9)], False),
        # the kernel killed a process of the cgroup
        ([(4, 0.5), (4, 0.6), (5, 0.2)], True),
        # it killed one much earlier
        ([(3, 0.5), *[(4, 0.5)] * 40], False),
        # Ray kills at this share; the death frees the memory
        ([(4, 0.5), (4, 0.96), (4, 0.1)], True),
        ([(4, 0.96), (4, 0.5), (4, 0.5), (4, 0.5)], False),
    ],
)
def test_a_death_is_attributed_to_memory_only_with_evidence(
    looks: list[tuple[int, float]], ran_out: bool
) -> None:
    watch = MemoryWatch(low=0.95)
    for killed, used in looks:
        watch.take(MemoryLook(killed, used))
    assert watch.ran_out == ran_out
