"""The engines that all routers share: real ones, with little enough to compute for two cores."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import Launched
from benchmarks.peers.routers import Backends
from benchmarks.small_model import small_model
from cli.local import redis_server
from cli.local.ports import free_ports
from deployments.fleet.fleet import Fleet

ENGINES = 2
MODEL, POOL = "small", "engine"
START_S = 240.0
# A conversation of six turns has 2,000 tokens at its end.
SMALL_CACHE_BLOCKS = 48
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    # for /reset_prefix_cache
    "VLLM_SERVER_DEV_MODE": "1",
}


def fleet_of(model: Path, small_caches: bool, metrics_port: int) -> Fleet:
    """`prompt_tokens_details`: so every router's answers tell what was cached."""
    engine_args: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 4096,
        "max_num_seqs": 16,
        "enforce_eager": True,
        "enable_prompt_tokens_details": True,
        # vllm-router's kv_aware asks engines for a prompt's tokens
        "enable_scale_out": True,
    }
    if small_caches:
        engine_args["num_gpu_blocks_override"] = SMALL_CACHE_BLOCKS
    pool = {"model": str(model), "served_model_name": MODEL, "engine_args": engine_args}
    return Fleet.model_validate(
        {
            "name": "peers",
            "metrics": {"port": metrics_port},
            # engines take all of two cores: a lookup waits for its turn, as everything does
            "redis": {"lookup_budget_ms": 150},
            "pools": {POOL: pool},
        }
    )


@contextlib.contextmanager
def running(folder: Path, small_caches: bool = False) -> Iterator[Backends]:
    """Until the end of the block. Raises RuntimeError when one does not start."""
    (metrics_port,) = free_ports(1)
    fleet = fleet_of(small_model(), small_caches, metrics_port)
    secret = secrets.token_hex(16)
    environment = {**ENVIRONMENT, "ANTEFIX_METRICS_FOLDER": str(folder / "metrics")}
    command = [sys.executable, "-m", "benchmarks.peers.engine"]
    with contextlib.ExitStack() as stack:
        redis = redis_server.start(folder / "redis", folder / "redis.log", os.environ)
        stack.callback(redis_server.stop, redis)
        engines = []
        for number in range(ENGINES):
            asked = {
                "fleet": fleet.model_dump(mode="json", exclude_unset=True),
                "replica_id": f"r{number}",
                "secret": secret,
                "redis_url": redis.url,
            }
            log = folder / f"engine-{number}.log"
            engines.append(Launched(command, log, environment, asked))
            stack.callback(engines[-1].stop)
        told = [engine.said(START_S) for engine in engines]
        yield Backends(
            fleet=fleet,
            secret=secret,
            api_key=secrets.token_hex(16),
            redis_url=redis.url,
            redis_pid=redis.pid,
            model=MODEL,
            urls=tuple(engine["url"] for engine in told),
            events=tuple(engine["events"] for engine in told),
            replays=tuple(engine["replay"] for engine in told),
            block_size=told[0]["block_size"],
            variables=ENVIRONMENT,
        )
