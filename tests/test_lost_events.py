"""KV events lost for good, and a cache reset: the index forgets, and finds again what is held."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from deployments.app import ENGINE_ENVIRONMENT
from tests.ports import free_ports
from tests.router.redis_process import running

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[1]
SEGMENTS = 7 * 128


def test_lost_events_and_a_cache_reset_leave_no_stale_index_entries(
    warm_python: str, small_model: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    with running(tmp_path / "redis", port, f"port {port}\n"):
        done = subprocess.run(
            [warm_python, "-m", "tests.lost_events"],
            input=json.dumps(
                {"model": str(small_model), "redis_url": f"redis://127.0.0.1:{port}/0"}
            ),
            env={
                **os.environ,
                **ENGINE_ENVIRONMENT,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            },
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            cwd=REPOSITORY,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == [
        {"step": "first", "cached": 0, "depth": 7},
        # it is unknown what the engine still holds: nothing is trusted
        {"step": "lost", "cached": None, "depth": 0},
        # it held all of it, and has said so when it was used
        {"step": "reused", "cached": SEGMENTS, "depth": 7},
        {"step": "reset", "cached": None, "depth": 0},
        {"step": "again", "cached": 0, "depth": 7},
    ]
