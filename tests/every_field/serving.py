"""Starts a real engine behind a real gateway (`served_engine`), and stops it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Served:
    """`spent_url` takes `access` for headers: what was generated and charged."""

    url: str
    processes: frozenset[psutil.Process]
    spent_url: str
    access: dict[str, str]

    @property
    def dead(self) -> list[int]:
        """Process ids of the engine's that have ended."""
        return [process.pid for process in self.processes if not process.is_running()]


@contextmanager
def serving(
    python: str,
    engine_args: Mapping[str, Any],
    log: Path,
    module: str = "tests.every_field.served_engine",
) -> Iterator[Served]:
    """`log`: a file for what vLLM prints."""
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "PYTHONHASHSEED": "0",
    }
    with (
        log.open("w") as vllm,
        subprocess.Popen(
            [python, "-m", module, json.dumps(engine_args)],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=vllm,
            text=True,
        ) as server,
    ):
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, log.read_text()[-3000:]
            told = json.loads(line)
            processes = frozenset(psutil.Process(pid) for pid in told["processes"])
            yield Served(told["url"], processes, *told["spent"])
        finally:
            assert server.stdin is not None
            server.stdin.close()
