"""What Antefix is for, as a whole. AWQ weights, a draft model, tensor parallelism and KV events,
behind the prefix router, change no token of the same weights.

The model is one that says nothing by a narrow margin (tests.quantized.walking_model): the CPU's
kernel for 4 bits computes bfloat16, in which two workers add in another order than one.
"""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from benchmarks.harness.fleets import own_redis
from benchmarks.harness.fleets.launched import Launched
from cli.local.ports import LOOPBACK, free_ports
from deployments.fleet.fleet import Fleet
from deployments.offline.offline_engine import OfflineEngine, Tokens
from tests.quantized.walking_model import edge, graph, walk
from weights.speculation.drafts import first_layers

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

START_S, TOKENS = 300.0, 24
# Nats. Transformers finds 16 and more before quantizing, in float32 and in bfloat16.
DECISIVE = 5.0
GRAPHS = [graph(number) for number in range(3)]
# Edges that all graphs have, longer than two segments of the prefix index, and those that differ.
RULES = random.Random(7).sample([edge(n, GRAPHS[0][n]) for n in range(24)] * 13, 300)
PROMPTS = [
    [*RULES, *random.Random(7).sample([edge(n, nodes[n]) for n in range(24, 32)] * 4, 30)]
    for nodes in GRAPHS
]
WALKS = [walk(nodes, ids[-1], TOKENS) for nodes, ids in zip(GRAPHS, PROMPTS, strict=True)]
PLAIN: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "enforce_eager": True,
}
ENV = {
    # With AMX, vLLM would round activations to 8 bits, as no GPU does with these weights. What that
    # leaves of a walk depends on the text that AWQ was calibrated on.
    "VLLM_CPU_INT4_W4A8": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}


@dataclass(frozen=True)
class Plain:
    """What one engine says without draft, parallelism and router: to each prompt alone, and to all
    at once. `margin`: by how many nats the likeliest token is ahead of the next, at least."""

    alone: list[Tokens]
    together: list[Tokens]
    margin: float


@pytest.fixture(scope="module")
def draft(walking_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layer of the model, which is right about a third of the targets."""
    folder = tmp_path_factory.mktemp("draft") / "model"
    first_layers(walking_model_folder, 1, folder)
    return folder


@pytest.fixture(scope="module")
def plain(
    int4_kernel: None, quantized_folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Plain:
    folder, args = tmp_path_factory.mktemp("plain"), {**PLAIN, "enable_prefix_caching": False}
    with OfflineEngine.start(
        str(quantized_folders / "awq" / "model"), args, folder / "log", ENV
    ) as engine:
        alone = [
            engine.generate([prompt], TOKENS, ignore_eos=True).outputs[0] for prompt in PROMPTS
        ]
        together = engine.generate(PROMPTS, TOKENS, ignore_eos=True).outputs
        margins = []
        for prompt, answer in zip(PROMPTS, alone, strict=True):
            engine.write_logprobs([*prompt, *answer], folder / "logprobs.npz")
            with np.load(folder / "logprobs.npz") as found:
                best = np.sort(found["logprobs"][len(prompt) - 1 :], axis=1)
            margins.append(float((best[:, -1] - best[:, -2]).min()))
    return Plain(alone, together, min(margins))


def fleet_of(model: Path, draft: Path) -> Fleet:
    metrics_port, port = free_ports(2)
    drafts = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3}
    pool = {
        "model": str(model),
        "served_model_name": "flagship",
        "engine_args": {
            **PLAIN,
            "tensor_parallel_size": 2,
            "speculative_config": {**drafts, "draft_tensor_parallel_size": 2},
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
def serving(folder: Path, fleet: Fleet, key: str) -> Iterator[None]:
    """Run a replica and a gateway as processes: each stores its metrics as a process."""
    common: dict[str, Any] = {"fleet": fleet.model_dump(mode="json", exclude_unset=True)}
    environment = {**ENV, "ANTEFIX_METRICS_FOLDER": str(folder / "metrics")}
    with own_redis.running(folder) as redis, ExitStack() as stack:
        common |= {"secret": secrets.token_hex(16), "redis_url": redis.url}
        for name, asked in (
            ("benchmarks.harness.fleets.lone_replica", {"replica_id": "r0"}),
            ("benchmarks.harness.fleets.lone_gateway", {"engines": 1, "api_keys": {key: "tests"}}),
        ):
            log = folder / f"{name}.log"
            command = [sys.executable, "-m", name]
            process = Launched(command, log, environment, {**common, **asked})
            stack.callback(process.stop)
            process.said(START_S)
        yield


def test_no_token_depends_on_rounding(plain: Plain) -> None:
    assert plain.alone == plain.together == WALKS
    assert plain.margin > DECISIVE


async def test_awq_draft_tensor_parallelism_and_router_change_no_token(
    quantized_folders: Path, draft: Path, plain: Plain, tmp_path: Path
) -> None:
    answers: list[Tokens] = []
    fleet, key = fleet_of(quantized_folders / "awq" / "model", draft), secrets.token_hex(16)
    url = f"http://{LOOPBACK}:{fleet.gateway.port}"
    headers = {"authorization": f"Bearer {key}"}
    with serving(tmp_path, fleet, key):
        async with aiohttp.ClientSession(url, headers=headers) as http:
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
    assert answers == plain.alone
