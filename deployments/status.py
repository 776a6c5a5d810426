"""What a fleet is doing now, for `antefix status` and the readiness probe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.schema import ServeStatus

from deployments.fleet import Fleet
from deployments.pool_client import PoolClient
from router.cost import predict_ttft

APP_NAME = "antefix"
# The prompt whose TTFT `status` predicts for each replica, in tokens.
REFERENCE_PROMPT_TOKENS = 512


async def pools_ready(pools: Mapping[str, PoolClient]) -> list[str]:
    """The pools that have no running replica."""
    if all(pool.router.placer.board.loads() for pool in pools.values()):
        return []
    states = await _replica_states()
    return [name for name in pools if not states.get(name, {}).get("RUNNING")]


async def fleet_status(fleet: Fleet, pools: Mapping[str, PoolClient]) -> dict[str, Any]:
    states = await _replica_states()
    return {
        "fleet": fleet.name,
        "reference_prompt_tokens": REFERENCE_PROMPT_TOKENS,
        "gateways": states.get("gateway", {}),
        "pools": {name: _pool_status(pool, states.get(name, {})) for name, pool in pools.items()},
    }


def _pool_status(pool: PoolClient, states: Mapping[str, int]) -> dict[str, Any]:
    loads = pool.router.placer.board.loads()
    return {
        "model": pool.pool.served_model_name,
        "target_replicas": pool.pool.replicas + pool.pool.warm_replicas,
        "states": dict(states),
        "policy": pool.pool.policy,
        "index": pool.router.index_status(),
        "replicas": [
            {
                "replica": load.replica_id,
                "slot": load.slot,
                "synced": load.synced,
                "url": load.url,
                "node_ip": load.node_ip,
                "waiting": load.waiting,
                "running": load.running,
                "queued_prefill_tokens": load.queued_prefill_tokens,
                "kv_use": round(load.kv_use, 4),
                "predicted_ttft_s": round(predict_ttft(load, REFERENCE_PROMPT_TOKENS), 4),
            }
            for _, load in sorted(loads.items())
        ],
    }


async def _replica_states() -> dict[str, dict[str, int]]:
    """Replica counts by state, by deployment, from Ray Serve's controller."""
    status: ServeStatus = await asyncio.to_thread(serve.status)
    application = status.applications.get(APP_NAME)
    if application is None:
        return {}
    return {
        name: {str(state): count for state, count in deployment.replica_states.items()}
        for name, deployment in application.deployments.items()
    }
