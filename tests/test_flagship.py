"""What Antefix is for, as a whole: AWQ weights, a draft model, tensor parallelism and KV events
behind the prefix router give the tokens that the same weights give without any of them.

The CPU's kernel for 4 bits computes bfloat16, in which two workers add in another order than one:
each token must be the likeliest one up to rounding, given those before it.
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from benchmarks.stand import lone_gateway, own_redis
from benchmarks.stand.launched import Launched
from cli.local.overlay_packages import quantizer_packages
from cli.local.ports import LOOPBACK, free_ports
from deployments.fleet.fleet import Fleet
from deployments.gateway.parts import Secrets
from deployments.offline.offline_engine import OfflineEngine, Tokens
from tests.split_model import split_model
from weights.drafts import first_layers
from weights.quantize_job import QuantizeJob

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent
START_S, TOKENS = 300.0, 24
# Nats, of log-probabilities kept as float16.
ROUNDING = 0.25
# Longer than two segments of the prefix index, and three ends.
RULES = random.Random(7).sample(range(1000, 40000), 300)
PROMPTS = [[*RULES, *random.Random(end).sample(range(1000, 40000), 30)] for end in range(3)]
QUANTIZE = """
import sys
from pathlib import Path
from weights.quantizing import QuantizingProgress, quantize

quantize(Path(sys.argv[1]), QuantizingProgress(sys.stdout))
"""
PLAIN: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "enforce_eager": True,
}
ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`awq/model` is quantized, `draft` has the first layer of what it was made of."""
    folder = tmp_path_factory.mktemp("flagship")
    (folder / "whole").mkdir()
    split_model(folder / "whole")
    first_layers(folder / "whole", 1, folder / "draft")
    (folder / "awq").mkdir()
    job = QuantizeJob(str(folder / "whole"), None, "awq", 32, 1, str(ROOT / "README.md"), 4, 64)
    (folder / "awq" / "job.json").write_text(job.to_json())
    packages = quantizer_packages(lambda *progress: None)
    done = subprocess.run(
        [sys.executable, "-c", QUANTIZE, str(folder / "awq")],
        env={**os.environ, "PYTHONPATH": f"{packages}:{ROOT}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def nats_behind(folder: Path, answers: list[Tokens]) -> float:
    """By how much, at most, a token of the answers is less likely than the likeliest, in one engine
    without draft, parallelism, cache and router."""
    args = {**PLAIN, "enable_prefix_caching": False}
    behind = []
    with OfflineEngine.start(str(folder / "awq" / "model"), args, folder / "log", ENV) as engine:
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            engine.write_logprobs([*prompt, *answer], folder / "logprobs.npz")
            with np.load(folder / "logprobs.npz") as found:
                rows = found["logprobs"][len(prompt) - 1 :]
            behind += [
                float(row.max() - row[token]) for row, token in zip(rows, answer, strict=True)
            ]
    assert len(behind) == len(PROMPTS) * TOKENS
    return max(behind)


def fleet_of(folder: Path) -> Fleet:
    metrics_port, port = free_ports(2)
    draft = {"method": "draft_model", "model": str(folder / "draft"), "num_speculative_tokens": 3}
    pool = {
        "model": str(folder / "awq" / "model"),
        "served_model_name": "flagship",
        "engine_args": {
            **PLAIN,
            "tensor_parallel_size": 2,
            "speculative_config": {**draft, "draft_tensor_parallel_size": 2},
        },
    }
    return Fleet.model_validate(
        {
            "name": "flagship",
            "metrics": {"port": metrics_port},
            "redis": {"lookup_budget_ms": 1000},
            "gateway": {"port": port},
            "pools": {"engine": pool},
        }
    )


@contextmanager
def replica(folder: Path, fleet: Fleet, secret: str) -> Iterator[str]:
    """The URL of the Redis that it tells what it has cached."""
    with own_redis.running(folder) as redis:
        asked = {
            "fleet": fleet.model_dump(mode="json", exclude_unset=True),
            "replica_id": "r0",
            "secret": secret,
            "redis_url": redis.url,
        }
        environment = {**ENV, "ANTEFIX_METRICS_FOLDER": str(folder / "metrics")}
        command = [sys.executable, "-m", "benchmarks.stand.lone_replica"]
        engine = Launched(command, folder / "replica.log", environment, asked)
        try:
            engine.said(START_S)
            yield redis.url
        finally:
            engine.stop()


async def test_awq_draft_tensor_parallelism_and_router_change_no_token(folder: Path) -> None:
    answers: list[Tokens] = []
    fleet, secret, key = fleet_of(folder), secrets.token_hex(16), secrets.token_hex(16)
    with replica(folder, fleet, secret) as redis_url:
        known = Secrets({key: "tests"}, secret, redis_url)
        async with (
            lone_gateway.serving(fleet, known, 1, START_S),
            aiohttp.ClientSession(
                f"http://{LOOPBACK}:{fleet.gateway.port}",
                headers={"authorization": f"Bearer {key}"},
            ) as http,
        ):
            cached = []
            for ids in PROMPTS:
                body = {
                    "model": "flagship",
                    "prompt": ids,
                    "max_tokens": TOKENS,
                    "temperature": 0,
                    "ignore_eos": True,
                    "return_token_ids": True,
                }
                async with http.post("/v1/completions", json=body) as answer:
                    said = await answer.json()
                    assert answer.status == 200, said
                    cached.append(int(answer.headers["x-antefix-cached-tokens-predicted"]))
                    found = int(answer.headers["x-antefix-cached-tokens"])
                    assert found == cached[-1]
                answers.append(said["choices"][0]["token_ids"])
    # the first computes the rules, the others are known to find them
    assert cached[0] == 0 and min(cached[1:]) >= 128
    assert nats_behind(folder, answers) < ROUNDING
