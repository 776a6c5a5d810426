"""One real engine behind a real gateway, whose steps are so short that a prompt takes several."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.fakes.front import KEY

REPOSITORY = Path(__file__).parents[2]
STEP_TOKENS = 64
ENGINE_ARGS = {
    "dtype": "float32",
    # an answer without a limit ends soon
    "max_model_len": 320,
    "max_num_seqs": 16,
    "max_num_batched_tokens": STEP_TOKENS,
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

    @property
    def dead(self) -> list[int]:
        """Process ids of the engine's that have ended."""
        return [process.pid for process in self.processes if not process.is_running()]


@pytest.fixture(scope="package")
def served(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("engine") / "log"
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
            [warm_python, "-m", "tests.every_field.served_engine", json.dumps(ENGINE_ARGS)],
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


@pytest.fixture
async def http(served: Served) -> AsyncIterator[aiohttp.ClientSession]:
    key = {"authorization": f"Bearer {KEY}"}
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(served.url, headers=key, timeout=timeout) as session:
        yield session
