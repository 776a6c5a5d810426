"""An engine that dies again and again is started less often; one that dies once, at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from deployments.engine.start.deaths import RECENT_S, Cause, Deaths, back_off_s
from observability.metrics.metrics import ENGINE_DEATHS


def test_the_metric_has_every_cause() -> None:
    assert get_args(Cause) == ENGINE_DEATHS


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def test_starts_are_delayed_from_the_third_death_by_up_to_a_minute() -> None:
    assert [back_off_s(deaths) for deaths in range(9)] == [0, 0, 0, 5, 10, 20, 40, 60, 60]
    assert back_off_s(10**6) == 60


def test_deaths_count_for_ten_minutes_and_for_all_replicas_of_the_node(tmp_path: Path) -> None:
    clock = Clock()
    one, other = Deaths(tmp_path, clock), Deaths(tmp_path, clock)
    assert one.recent() == {}
    one.add("died")
    clock.now += RECENT_S / 2
    other.add("hung")
    assert one.recent() == other.recent() == {"died": 1, "hung": 1}
    clock.now += RECENT_S / 2
    assert one.recent() == {"hung": 1}
    clock.now += RECENT_S / 2
    assert one.recent() == {}


def test_after_the_clock_is_set_back_no_death_is_recent(tmp_path: Path) -> None:
    clock = Clock()
    deaths = Deaths(tmp_path, clock)
    deaths.add("died")
    clock.now -= 3600
    assert deaths.recent() == {}


SCRIPT = """
import sys, time
from pathlib import Path
from deployments.engine.start.deaths import Deaths
deaths = Deaths(Path(sys.argv[1]))
deaths.alive()
print("here", flush=True)
sys.stdin.readline()
getattr(deaths, sys.argv[2])(*sys.argv[3:])
"""


def replica(folder: Path, *ends: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), *ends],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    return process


def test_a_replica_that_was_killed_is_counted_once_by_the_next(tmp_path: Path) -> None:
    killed, lives = replica(tmp_path, "left"), replica(tmp_path, "left")
    deaths = Deaths(tmp_path)
    deaths.find_killed()
    assert deaths.recent() == {}
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    for _ in range(2):
        deaths.find_killed()
        assert deaths.recent() == {"killed": 1}
    lives.communicate(b"\n")
    deaths.find_killed()
    assert deaths.recent() == {"killed": 1}


@pytest.mark.parametrize("ends", [("left",), ("add", "died")])
def test_a_replica_that_reported_its_end_does_not_count_as_killed(
    tmp_path: Path, ends: tuple[str, ...]
) -> None:
    replica(tmp_path, *ends).communicate(b"\n")
    deaths = Deaths(tmp_path)
    deaths.find_killed()
    assert deaths.recent()["killed"] == 0


def test_without_a_folder_starts_are_not_delayed(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    deaths = Deaths(tmp_path / "taken" / "deaths")
    deaths.find_killed()
    deaths.alive()
    deaths.add("died")
    deaths.left()
    assert deaths.recent() == {}


async def test_a_pool_can_start_without_waiting_however_often_its_engines_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = Deaths(tmp_path)
    for _ in range(20):
        deaths.add("died")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await deaths.wait()
    assert slept == [60.0]
    monkeypatch.setenv("ANTEFIX_RESTART_BACK_OFF", "off")
    await deaths.wait()
    assert slept == [60.0]


def test_invalid_lines_in_the_file_of_deaths_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "deaths").write_bytes(b"nonsense\n")
    assert Deaths(tmp_path).recent() == {}
