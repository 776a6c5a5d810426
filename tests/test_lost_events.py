"""KV events lost for good, and a cache reset: the index forgets, and finds again what is held."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_job import told_by
from tests.ports import free_ports
from tests.router.redis_process import running

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SEGMENTS = 7 * 128


def test_lost_events_and_a_cache_reset_leave_no_stale_index_entries(
    warm_python: str, small_model: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    with running(tmp_path / "redis", port, f"port {port}\n"):
        asked = {"model": str(small_model), "redis_url": f"redis://127.0.0.1:{port}/0"}
        told = told_by(warm_python, "tests.lost_events", asked, within_s=500)
    assert told == [
        {"step": "first", "cached": 0, "depth": 7},
        # it is unknown what the engine still holds: nothing is trusted
        {"step": "lost", "cached": None, "depth": 0},
        # it held all of it, and has said so when it was used
        {"step": "reused", "cached": SEGMENTS, "depth": 7},
        {"step": "reset", "cached": None, "depth": 0},
        {"step": "again", "cached": 0, "depth": 7},
    ]
