"""Conversations of one model that several pools serve, through several gateways and a Redis."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from deployments.gateway.models.model_routes import Conversations, WeightedPools
from observability.traces.request_record import RequestFacts, RequestRecord
from router.redis.redis_client import connect

PATH, SECRET = "/v1/chat/completions", "bench"
FLEET = "bench/canary"
# Redis is not measured here, so nothing is cut off.
PATIENT_S = 60.0
AT_ONCE = 64


@dataclass(frozen=True)
class Split:
    """`furthest`: the largest difference between a pool's share of new conversations and its
    weight. `moved`: conversations that another pool served in a later turn."""

    furthest: float
    moved: int


async def split(
    url: str, gateways: int, weights: Mapping[str, float], requests: int, turns: int, seed: int
) -> Split:
    """Each turn comes by a random gateway. In the middle of all conversations, weights are
    reversed; the share counts before."""
    rng = random.Random(seed)
    route = WeightedPools("model", weights, "")
    names = list(weights)
    changed = replace(
        route, weights=dict(zip(names, reversed(list(weights.values())), strict=True))
    )
    first: dict[int, str] = {}
    moved = 0
    async with AsyncExitStack() as stack:
        of = []
        for _ in range(gateways):
            await stack.enter_async_context(redis := connect(url))
            of.append(Conversations(redis, f"{FLEET}/{seed}", SECRET))

        async def turn(conversation: int, gateway: int, now: WeightedPools) -> str:
            fields = {"messages": [{"role": "user", "content": f"{seed} {conversation}"}]}
            record = RequestRecord(RequestFacts("", "tenant", PATH), 0.0)
            known = await of[gateway].of(now, record, fields, {}, PATIENT_S)
            pool, _ = now.choose(known)
            of[gateway].keep(now, known, pool)
            return pool

        count = requests // turns
        for number in range(turns):
            now = route if number < turns // 2 else changed
            for begin in range(0, count, AT_ONCE):
                block = range(begin, min(count, begin + AT_ONCE))
                chosen = await asyncio.gather(
                    *(turn(one, rng.randrange(gateways), now) for one in block)
                )
                for one, pool in zip(block, chosen, strict=True):
                    moved += first.setdefault(one, pool) != pool
    total, counts = sum(weights.values()), Counter(first.values())
    return Split(max(abs(counts[n] / count - w / total) for n, w in weights.items()), moved)
