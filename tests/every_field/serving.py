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

import aiohttp
import psutil

from tests.fakes.front import KEY

REPOSITORY = Path(__file__).parents[2]
# The arguments of an engine of one layer that answers chats with tools.
CHATS = {
    "dtype": "float32",
    "max_num_seqs": 16,
    "enforce_eager": True,
    # the model's own has a top_p, for which each step sorts its 49,152 tokens
    "generation_config": "vllm",
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "tool_strict_level": "parameter",
}


@dataclass(frozen=True)
class Served:
    """`spent_url` takes `access` for headers: what was generated and charged."""

    url: str
    processes: frozenset[psutil.Process]
    spent_url: str
    access: dict[str, str]

    def session(self) -> aiohttp.ClientSession:
        """A patient client of the gateway, with a key."""
        headers, timeout = {"authorization": f"Bearer {KEY}"}, aiohttp.ClientTimeout(total=300)
        return aiohttp.ClientSession(self.url, headers=headers, timeout=timeout)

    @property
    def dead(self) -> list[int]:
        """Process ids of the engine's that have ended."""
        return [process.pid for process in self.processes if not process.is_running()]


MODULE = "tests.every_field.served_engine"


@contextmanager
def serving(
    python: str,
    engine_args: Mapping[str, Any],
    log: Path,
    maker: str = "",
) -> Iterator[Served]:
    """`log`: a file for what vLLM prints. `maker`: the module that makes another model."""
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
            [python, "-m", MODULE, json.dumps(engine_args), *filter(None, [maker])],
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
