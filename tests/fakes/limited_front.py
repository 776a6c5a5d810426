"""A gateway whose tenant has limits, once it knows what of them is used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.budgets.budget_limits import Granted
from router.redis.redis_client import connect
from tests.fakes.engine import FakeEngine
from tests.fakes.front import NO_REDIS, REDIS_NAME, TENANT, Front, gateway_before
from tests.router.budget_redis import write_initial_state
from tests.waiting import until

LENGTH = 1000
PATIENCE_S = 20.0


@asynccontextmanager
async def charges_of(front: Front) -> AsyncIterator[list[int]]:
    """The tokens that each ended request is charged."""
    used: list[int] = []
    ledger = front.gateway.parts.budgets.ledger
    settle = ledger.settle

    def settled(granted: Granted, tokens: int, requests: int = 1) -> None:
        used.append(tokens)
        settle(granted, tokens, requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "settle", settled)
        yield used


@asynccontextmanager
async def limited(
    redis_url: str,
    engine: FakeEngine,
    limits: Mapping[str, Any],
    others: Sequence[FakeEngine] = (),
    pool_settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[Front]:
    """A gateway whose tenant has these limits."""
    if redis_url != NO_REDIS:
        async with connect(redis_url) as redis:
            await write_initial_state(redis, REDIS_NAME)
    pool = pool_settings or {"engine_args": {"max_model_len": LENGTH}}
    tenants = {TENANT: dict(limits)}
    async with gateway_before(
        engine, *others, redis_url=redis_url, pool=pool, tenants=tenants, **more
    ) as front:
        if redis_url != NO_REDIS:
            await until(lambda: not front.gateway.parts.budgets.by_share, PATIENCE_S)
        yield front
