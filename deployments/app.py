"""The Ray Serve applications: one of gateways, and one per pool of engines.

`build_gateways` and `build_pool` are their import paths, for `serve deploy` and a RayService
(`deployments.fleet.applications` has the whole configuration); `antefix up` calls `applications`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ray import serve
from ray.serve.context import _get_global_client

from common.errors import Problem
from common.machine import has_cpu_build
from deployments.autoscaler import autoscaling_config
from deployments.engine.replica import EngineReplica, leaving_s
from deployments.fleet.applications import (
    GATEWAYS_APPLICATION,
    GATEWAYS_DEPLOYMENT,
    HOT_OF_POOL,
    application_of,
    args_of_gateways,
    settings_of,
)
from deployments.fleet.fleet import MOST_N, Fleet, FleetBase
from deployments.fleet.fleet_file import parse_base, parse_fleet
from deployments.fleet.pool import Pool
from deployments.fleet.settings.redis_url import Refusal, masked, refusal_of
from deployments.gateway.gateway import Gateway
from deployments.gateway.gateway_parts import Secrets
from deployments.gateway.inquiries.health import unheard_s
from deployments.gateway.intake.api_keys import KEYS_FILE, check_file, given_in
from router.board.fleet_settings import forget_settings
from router.board.pool_demand import read_decided
from router.redis.redis_client import REDIS_FAILURES, connect
from router.redis.signature import Signer

logger = logging.getLogger("ray.serve")

HEALTH_CHECK_PERIOD_S = 2.0
# Ray collects metrics every 10 s. By default an idle replica is woken ten times a second for them.
_SERVE_ENVIRONMENT = {"RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000"}
# One event loop for the HTTP server and Ray Serve's router, so that a request never changes
# threads.
GATEWAY_ENVIRONMENT = {
    **_SERVE_ENVIRONMENT,
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}

# Until `serve_log` takes over, so that a replica's log is JSON from its first line.
LOGGING = {"encoding": "JSON"}

ENGINE_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # Full hashes in KV events: with 64 bits, an attacker could find two prompts with the same hash.
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
    # Gateways refuse at `gateway.max_n`, which is lower and may change while an engine runs.
    "VLLM_MAX_N_SEQUENCES": str(MOST_N),
    # vLLM's 4 are OpenAI's limit. Anthropic has none. Each costs time at every token.
    "VLLM_MAX_STOP_STRINGS": "64",
    # A host in `allowed_media_domains` must not redirect an engine elsewhere.
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    # Otherwise vLLM reports to its makers which model runs where, and the Hub's client reports its
    # downloads.
    "DO_NOT_TRACK": "1",
}
# OpenMP's threads wait for each other by spinning, which occupies cores that another engine's
# threads need. Two spinning engines on two cores decoded a sixth as fast as with sleeping threads.
_CPU_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


def applications(
    fleet: Fleet, secrets: Secrets, running: Mapping[str, int] | None = None
) -> dict[str, serve.Application]:
    """Return the whole fleet as Ray Serve applications, by name.

    `running`: the current number of replicas of running pools. Gateways with the same cold fields
    continue with the new settings; the engines of a redeployed pool do not.
    """
    fleet = fleet.with_secret(secrets.engine_secret)
    told = fleet.model_dump(mode="json")
    gateways = _gateways(fleet).options(
        num_replicas=fleet.gateway.replicas,
        max_surge_percent=fleet.surge_percent,
        user_config=settings_of(told),
        version=_digest(args_of_gateways(told)),
        _internal=True,
    )
    pools = {
        application_of(name): _pool(fleet, name, secrets, (running or {}).get(name))
        for name in fleet.pools
    }
    return {GATEWAYS_APPLICATION: gateways.bind(fleet, secrets), **pools}


async def running_replicas(fleet: Fleet, secrets: Secrets) -> dict[str, int]:
    """Return the number of replicas that the autoscaler runs now, of the pools that it knows."""
    fleet = fleet.with_secret(secrets.engine_secret)
    targets = {name: await _last_target(fleet.board_of(name), secrets) for name in fleet.pools}
    return {name: target for name, target in targets.items() if target is not None}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


async def begin_anew(fleet: Fleet, secrets: Secrets) -> None:
    """Delete an earlier fleet's data in Redis, before a fleet of which nothing runs."""
    redis = connect(secrets.redis_url)
    try:
        await forget_settings(redis, fleet.with_secret(secrets.engine_secret).board)
    except REDIS_FAILURES as error:  # the fleet's gateways will write others
        logger.warning("failed to delete an earlier fleet's settings of %s: %s", fleet.board, error)
    finally:
        await redis.aclose()


def _gateways(base: FleetBase) -> Any:
    gateway = base.gateway
    return serve.deployment(
        name=GATEWAYS_DEPLOYMENT,
        max_replicas_per_node=gateway.replicas_per_node,  # type: ignore[arg-type]  # or None
        graceful_shutdown_timeout_s=unheard_s() + gateway.drain_timeout_s,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        logging_config=LOGGING,
        ray_actor_options={
            "num_cpus": gateway.cpus,
            "resources": dict(gateway.custom),
            "runtime_env": {"env_vars": GATEWAY_ENVIRONMENT},
        },
    )(Gateway)


def _pool(
    fleet: Fleet, name: str, secrets: Secrets, replicas: int | None = None
) -> serve.Application:
    """Return a pool's application. `replicas`: the initial number, if the fleet does not determine
    it."""
    pool = fleet.pools[name]
    gpus = _gpus(pool) if not _spans_nodes(pool) else float(pool.world_size)
    engine: Any = serve.deployment(
        name=name,
        autoscaling_config=autoscaling_config(
            fleet,
            name,
            gpus,
            secrets.redis_url,
            signer=Signer(secrets.engine_secret),
            replicas=replicas,
        ),
        max_ongoing_requests=pool.max_ongoing_requests,
        max_queued_requests=pool.max_queued_requests,
        graceful_shutdown_timeout_s=leaving_s(pool) + fleet.gateway.drain_timeout_s,
        max_surge_percent=fleet.surge_percent,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        logging_config=LOGGING,
        request_router_config={
            "request_router_class": "deployments.request_router:RankedRequestRouter"
        },
        **placement_options(pool),
    )(EngineReplica)
    application: serve.Application = engine.bind(
        fleet.board_of(name),
        _with_its_executor(pool),
        secrets.engine_secret,
        secrets.redis_url,
        fleet.metrics,
    )
    return application


def placement_options(pool: Pool) -> dict[str, Any]:
    """Return where a replica may run, as Ray Serve deployment options.

    Tensor parallelism stays in one node: one actor takes all its GPUs. With pipeline parallelism
    every GPU is a separate bundle, as vLLM's Ray executor requires, so stages may run on different
    nodes. Packing keeps a stage's GPUs together if a node has room for them.
    """
    resources = pool.resources
    custom = dict(resources.custom)
    if resources.accelerator_type:
        custom[f"accelerator_type:{resources.accelerator_type}"] = 0.001
    on_cpus = {} if _gpus(pool) else _CPU_ENVIRONMENT
    environment = {**_SERVE_ENVIRONMENT, **ENGINE_ENVIRONMENT, **on_cpus, **pool.env}
    actor: dict[str, Any] = {
        "num_cpus": resources.cpus,
        "runtime_env": {"env_vars": environment},
    }
    if not _spans_nodes(pool):
        return {"ray_actor_options": {**actor, "num_gpus": _gpus(pool), "resources": custom}}
    worker = {"GPU": 1.0, **custom}
    return {
        "ray_actor_options": actor,
        # The replica actor shares the first worker's bundle. It uses no GPU, but vLLM detects the
        # kind of GPU in it, so it must be on a node with one.
        "placement_group_bundles": [
            {"CPU": resources.cpus, **worker},
            *(worker for _ in range(pool.world_size - 1)),
        ],
        "placement_group_strategy": "PACK",
    }


def _with_its_executor(pool: Pool) -> Pool:
    """Set the Ray executor. By default vLLM would search all its GPUs in the replica's node, and
    not start."""
    if not _spans_nodes(pool):
        return pool
    engine_args = {**pool.engine_args, "distributed_executor_backend": "ray"}
    return pool.model_copy(update={"engine_args": engine_args})


def _spans_nodes(pool: Pool) -> bool:
    """Return whether the workers are Ray actors. vLLM's CPU build supports processes of one node
    only."""
    backend = pool.engine_args.get("distributed_executor_backend") or "ray"
    return pool.pipeline_parallel > 1 and _gpus(pool) > 0 and backend == "ray"


def _gpus(pool: Pool) -> float:
    if pool.resources.gpus is not None:
        return pool.resources.gpus
    return 0 if has_cpu_build() else pool.world_size


def build_gateways(args: Mapping[str, Any]) -> serve.Application:
    """Build the application of the gateways; `args["fleet"]` is `applications.args_of_gateways`.

    Hot settings are in the `user_config` of its deployment. Secrets come from the environment:
    ANTEFIX_API_KEYS (`tenant=key,...`) or ANTEFIX_API_KEYS_FILE, ANTEFIX_ENGINE_SECRET, and
    ANTEFIX_REDIS_URL if the fleet has no `redis.url`. If several Ray clusters run one fleet,
    ANTEFIX_CLUSTER distinguishes them. Raises FleetError, or Problem for missing secrets.
    """
    base = parse_base(_text(args), "fleet").in_cluster(os.environ.get("ANTEFIX_CLUSTER", ""))
    secrets = secrets_from_environment(base, os.environ)
    base = base.with_secret(secrets.engine_secret)
    application: serve.Application = _gateways(base).bind(base, secrets)
    return application


def build_pool(args: Mapping[str, Any]) -> serve.Application:
    """Build the application of one pool; `args["fleet"]` is `applications.args_of_pool`.

    Hot settings are read from Ray Serve, which has them from the gateways' application. Environment
    and errors are those of `build_gateways`.
    """
    cold = parse_fleet(_text(args), "fleet").in_cluster(os.environ.get("ANTEFIX_CLUSTER", ""))
    secrets = secrets_from_environment(cold, os.environ)
    cold = cold.with_secret(secrets.engine_secret)
    (name,) = cold.pools
    client = _get_global_client(raise_if_no_controller_running=False)
    fleet = as_deployed(cold, client.get_serve_details() if client else {})
    board = fleet.board_of(name)
    return _pool(fleet, name, secrets, asyncio.run(_last_target(board, secrets)))


def as_deployed(cold: Fleet, details: Mapping[str, Any]) -> Fleet:
    """Return the fleet of one pool with its hot fields from `details`, Ray Serve's report
    (`ServeInstanceDetails`).

    Without hot fields if the report has none.
    """
    (name,) = cold.pools
    gateways = details.get("applications", {}).get(GATEWAYS_APPLICATION, {})
    try:
        (deployment,) = (gateways.get("deployed_app_config") or {})["deployments"]
        hot = Fleet.model_validate(deployment["user_config"])
        wanted = hot.pools[name]
    except (KeyError, ValueError) as error:  # the gateways log the details
        logger.warning(
            "failed to read the current settings of pool %s; using those of its deployment: %s",
            name,
            error,
        )
        return cold
    pool = cold.pools[name].model_copy(
        update={field: getattr(wanted, field) for field in HOT_OF_POOL}
    )
    hot_fields = {"gpu_budget": hot.gpu_budget, "surge_percent": hot.surge_percent}
    return cold.model_copy(update={"pools": {name: pool}, **hot_fields})


async def _last_target(board: str, secrets: Secrets) -> int | None:
    """Return the number of replicas that the autoscaler runs now; None: unknown, or none yet.

    Ray Serve does not report deployments of an application that it is building again.
    """
    redis = connect(secrets.redis_url)
    try:
        decided = await read_decided(redis, board, Signer(secrets.engine_secret))
    except REDIS_FAILURES as error:
        logger.warning("failed to read the last autoscaling decision for %s: %s", board, error)
        return None
    finally:
        await redis.aclose()
    return decided.target if decided else None


def _text(args: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(args["fleet"]), sort_keys=False)


def secrets_from_environment(fleet: FleetBase, environment: Mapping[str, str]) -> Secrets:
    """Return the secrets. Raises Problem for missing ones."""
    keys_file = environment.get(KEYS_FILE, "")
    api_keys: Mapping[str, str] = {}
    if keys_file:  # gateways read the file, because Ray Serve stores its arguments
        check_file(Path(keys_file))
    elif not (api_keys := given_in(environment.get("ANTEFIX_API_KEYS", ""))):
        raise Problem(
            "no API keys are set",
            "set ANTEFIX_API_KEYS to 'tenant=key', several separated by commas, or "
            f"{KEYS_FILE} to a file that contains them",
        )
    engine_secret = environment.get("ANTEFIX_ENGINE_SECRET")
    if not engine_secret:
        raise Problem(
            "no engine secret is set",
            "set ANTEFIX_ENGINE_SECRET to a random string, the same on every node",
        )
    redis_url = fleet.redis.url or environment.get("ANTEFIX_REDIS_URL")
    if not redis_url:
        raise Problem(
            "no Redis is configured", "set redis.url in the fleet file, or ANTEFIX_REDIS_URL"
        )
    try:
        connect(redis_url)
    except ValueError:  # its message may contain a password
        refusal = refusal_of(redis_url) or Refusal("not usable", "See docs/fleet-file.md")
        raise Problem(
            f"the Redis URL {masked(redis_url)} cannot be used: {refusal.message}",
            f"{refusal.remedy}: redis.url in the fleet file, or ANTEFIX_REDIS_URL",
        ) from None
    return Secrets(api_keys, engine_secret, redis_url, keys_file)
