"""A fleet of one pool, and the environment of its applications."""

from __future__ import annotations

from typing import Any

from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool

REDIS_URL = "redis://127.0.0.1:1/0"
KEY, BLUE_KEY = "key-of-the-red-tenant", "key-of-the-blue-tenant"
ENVIRONMENT = {
    "ANTEFIX_API_KEYS": f"red={KEY}, blue = {BLUE_KEY},",
    "ANTEFIX_ENGINE_SECRET": "engine-secret",
    "ANTEFIX_REDIS_URL": REDIS_URL,
}


def pool_of(tp: int = 1, pp: int = 1, backend: str | None = None, **more: Any) -> Pool:
    engine_args: dict[str, Any] = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    if backend is not None:
        engine_args["distributed_executor_backend"] = backend
    return Pool.model_validate({"model": "org/model", "engine_args": engine_args, **more})


def fleet_of(pool: Pool, **more: Any) -> Fleet:
    data = {"name": "test", "pools": {"engine": pool.model_dump()}, **more}
    return Fleet.model_validate(data)
