"""A real engine is profiled while it answers: what the profile has, and what is not in it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[1]
PROMPT = "The capital of Atlantis is"
SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import aiohttp

from deployments.engine.adapters.loaded_adapters import AdapterLoading, EngineAdapters
from deployments.engine.serving.application import application
from deployments.engine.vllm.adapter import VllmEngine
from deployments.process.http_server import HttpServer

asked = json.load(sys.stdin)


async def main():
    engine = await VllmEngine.start(asked["model"], "model", asked["engine_args"])
    adapters = AdapterLoading(EngineAdapters(engine.loras, (), Path("unused")))
    server = HttpServer(application(engine, engine.app, adapters, 128, 0.0))
    url = await server.start("127.0.0.1")
    body = {"model": "model", "prompt": asked["prompt"], "max_tokens": 8}

    async def profile(http):
        async with http.post(f"{url}/antefix/profile", params={"seconds": "0.5"}) as answer:
            return await answer.json()

    async with aiohttp.ClientSession() as http:
        profiling = asyncio.create_task(profile(http))
        statuses = []
        while not profiling.done() or not statuses:
            async with http.post(f"{url}/v1/completions", json=body) as answer:
                statuses.append(answer.status)
        told = {"profile": await profiling, "statuses": statuses}
    await server.drain()
    engine.stop()
    with answers:
        json.dump(told, answers)


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def profiled_run(warm_python: str, small_model: Path, traces: Path) -> dict[str, Any]:
    asked = {
        "model": str(small_model),
        "prompt": PROMPT,
        "engine_args": {
            "max_model_len": 256,
            "enforce_eager": True,
            "profiler_config": {
                "profiler": "torch",
                "torch_profiler_dir": str(traces),
                "torch_profiler_with_stack": False,
                "ignore_frontend": True,
            },
        },
    }
    done = subprocess.run(
        [warm_python, "-c", SCRIPT],
        input=json.dumps(asked),
        env={
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        },
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_an_engine_answers_requests_while_it_is_profiled(profiled_run: dict[str, Any]) -> None:
    assert set(profiled_run["statuses"]) == {200}


def test_the_trace_names_the_operators_and_no_prompt(
    profiled_run: dict[str, Any], traces: Path
) -> None:
    profile = profiled_run["profile"]
    assert profile["folder"] == str(traces)
    names = [file["name"] for file in profile["files"] if file["name"].endswith(".json.gz")]
    assert names
    text = gzip.decompress((traces / names[0]).read_bytes()).decode()
    events = {event.get("name") for event in json.loads(text)["traceEvents"]}
    assert any(str(name).startswith("aten::") for name in events)
    assert "Atlantis" not in text
