"""A module with an engine, which a test runs in its own process and gives JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.app import ENGINE_ENVIRONMENT

REPOSITORY = Path(__file__).parents[1]


def engine_environment(more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the environment of a process with an engine on CPUs."""
    return {
        **os.environ,
        **ENGINE_ENVIRONMENT,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # otherwise vLLM wants a NUMA node for each worker
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **more,
    }


def told_by(
    python: str,
    module: str,
    asked: Mapping[str, Any],
    *,
    within_s: float,
    env: Mapping[str, str] = {},
    exit_status: int = 0,
) -> Any:
    """Return the JSON that the module writes. It has `asked` as JSON on its stdin, and `env` in
    its environment."""
    done = subprocess.run(
        [python, "-m", module],
        input=json.dumps(asked),
        env=engine_environment(env),
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == exit_status, done.stderr[-4000:]
    return json.loads(done.stdout)
