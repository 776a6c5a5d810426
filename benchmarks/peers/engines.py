"""The engines behind the routers: real ones, with little enough to compute for two cores.

Antefix is in front of its replicas, with all that they publish. The others are in front of vLLM's
own servers with the same arguments, and of nothing of Antefix.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.fleets import own_redis
from benchmarks.harness.fleets.launched import Launched
from benchmarks.harness.fleets.small_model import small_model
from cli.local.ports import LOOPBACK, free_ports
from deployments.fleet.fleet import Fleet
from weights.model.cpu_dtype import dtype_of_this_cpu

ENGINES = 2
MODEL, POOL = "small", "engine"
START_S = 240.0
# A conversation of six turns has 2,000 tokens at its end.
SMALL_CACHE_BLOCKS = 48
# vLLM's default on CPUs, said so that no engine has another.
BLOCK_TOKENS = 128
EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    # for /reset_prefix_cache
    "VLLM_SERVER_DEV_MODE": "1",
}


@dataclass(frozen=True)
class Backends:
    """The engines, as routers get them; tuples have one of each for each engine. Those of Antefix
    have a secret, a Redis and the key that clients have. The others publish KV events and their
    replay at `events` and `replays`."""

    fleet: Fleet
    urls: tuple[str, ...]
    secret: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    redis_url: str = field(default="", repr=False)
    redis_pid: int = 0
    events: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()


def fleet_of(model: Path, small_caches: bool, metrics_port: int) -> Fleet:
    """`prompt_tokens_details`: so that each router's answers report cached tokens."""
    engine_args: dict[str, Any] = {
        # named, so that peers' engines compute in it as well
        "dtype": dtype_of_this_cpu().dtype,
        "max_model_len": 4096,
        "max_num_seqs": 16,
        "enforce_eager": True,
        "block_size": BLOCK_TOKENS,
        "enable_prompt_tokens_details": True,
        # vllm-router's kv_aware asks engines for a prompt's tokens
        "enable_scale_out": True,
    }
    if small_caches:
        engine_args["num_gpu_blocks_override"] = SMALL_CACHE_BLOCKS
    pool = {"model": str(model), "served_model_name": MODEL, "engine_args": engine_args}
    return Fleet.model_validate(
        {"name": "peers", "metrics": {"port": metrics_port}, "pools": {POOL: pool}}
    )


@contextlib.contextmanager
def running(folder: Path, *, small_caches: bool, ours: bool) -> Iterator[Backends]:
    """Until the end of the block: replicas of Antefix, or vLLM's own servers with the same
    arguments. Raises RuntimeError when one does not start."""
    with contextlib.ExitStack() as stack:
        yield (_replicas if ours else _plain)(folder, small_caches, stack)


def _replicas(folder: Path, small_caches: bool, stack: contextlib.ExitStack) -> Backends:
    (metrics_port,) = free_ports(1)
    fleet = fleet_of(small_model(), small_caches, metrics_port)
    secret = secrets.token_hex(16)
    redis = stack.enter_context(own_redis.running(folder))
    engines = []
    for number in range(ENGINES):
        asked = {
            "fleet": fleet.model_dump(mode="json", exclude_unset=True),
            "replica_id": f"r{number}",
            "secret": secret,
            "redis_url": redis.url,
        }
        environment = {**ENVIRONMENT, "ANTEFIX_METRICS_FOLDER": str(folder / "metrics")}
        command = [sys.executable, "-m", "benchmarks.harness.fleets.lone_replica"]
        engines.append(Launched(command, folder / f"engine-{number}.log", environment, asked))
        stack.callback(engines[-1].stop)
    return Backends(
        fleet,
        tuple(engine.said(START_S)["url"] for engine in engines),
        secret=secret,
        api_key=secrets.token_hex(16),
        redis_url=redis.url,
        redis_pid=redis.pid,
    )


def _plain(folder: Path, small_caches: bool, stack: contextlib.ExitStack) -> Backends:
    """What other routers are in front of: nothing of Antefix runs in or next to these engines."""
    ports = free_ports(3 * ENGINES)
    fleet = fleet_of(small_model(), small_caches, ports[0])
    pool = fleet.pools[POOL]
    addresses = [f"tcp://{LOOPBACK}:{port}" for port in ports]
    events, replays = addresses[ENGINES : 2 * ENGINES], addresses[2 * ENGINES :]
    urls = [f"http://{LOOPBACK}:{port}" for port in ports[:ENGINES]]
    engines = []
    for number in range(ENGINES):
        told = events[number], replays[number]
        command = plain_command(pool.model, pool.engine_args, ports[number], told)
        engines.append(Launched(command, folder / f"engine-{number}.log", ENVIRONMENT))
        stack.callback(engines[-1].stop)
    for engine, url in zip(engines, urls, strict=True):
        engine.until_healthy(url, START_S)
    return Backends(fleet, tuple(urls), events=tuple(events), replays=tuple(replays))


def plain_command(
    model: str, engine_args: Mapping[str, Any], port: int, events: tuple[str, str]
) -> list[str]:
    """vLLM's own server. `events`: where it publishes KV events, and their replay. It binds both,
    that of events only at a wildcard address. Its executor is the one our replicas choose, which
    starts no worker."""
    settings = {
        **engine_args,
        "served_model_name": MODEL,
        "host": LOOPBACK,
        "port": port,
        "distributed_executor_backend": EXECUTOR,
        "kv_events_config": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": events[0].replace(LOOPBACK, "*"),
            "replay_endpoint": events[1],
        },
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            command.append(flag)
        else:
            command += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return command
