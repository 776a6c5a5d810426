"""A Redis that has kept budgets for long."""

from typing import Any

from router.redis import redis_keys
from router.redis.redis_client import AsyncRedis


async def write_initial_state(redis: AsyncRedis, fleet: str) -> None:
    """A new one grants nothing for a window, since it may have forgotten what was granted."""
    info: Any = await redis.info("server")
    begun: Any = {"gen": info["run_id"], "born": 0, "expected": 1}
    await redis.hset(redis_keys.key(fleet, "budgets"), mapping=begun)
