"""A gateway's code for budgets, in a process that may be killed at any moment.

It reads lines of JSON, each with what to `do` on the budget `scope`. `begin` waits for the first
grant. `burst` makes `requests` at once. `load` requests again and again for `for_s` seconds.
`time` makes requests one after the other. Each grant is a line of a file: scope, the machine's
clock, tokens used, and whether it was by share.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

from common.percentiles import Tail, percentile
from router.budgets.budget_book import places_of
from router.budgets.budget_ledger import BudgetLedger
from router.budgets.budget_limits import Granted, TenantBudget
from router.redis.redis_client import connect

FLEET = "bench"
CLIENTS = 4
# Seconds after which a rejected client asks again.
AGAIN_S = 0.05


class BudgetGateway:
    def __init__(self, url: str, gateways: int, limit: int, file: str) -> None:
        places = places_of(FLEET, url)
        self.ledger = BudgetLedger(connect(url, decode=False), FLEET, gateways, places=places)
        self._limit = limit
        self._file = open(file, "a")  # noqa: PTH123, SIM115  # until the process ends

    async def do(self, asked: dict[str, Any]) -> dict[str, Any]:
        budget = TenantBudget(asked["scope"], tokens=self._limit)
        match asked["do"]:
            case "begin":
                while not isinstance(await self.ledger.reserve([budget], 1), Granted):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
            case "burst":
                await asyncio.sleep(max(0.0, asked["at"] - time.time()))
                tokens, requests = asked["tokens"], asked["requests"]
                await asyncio.gather(*(self._burst(budget, tokens) for _ in range(requests)))
            case "load":
                until = time.monotonic() + asked["for_s"]
                clients = (self._load(budget, asked["tokens"], until) for _ in range(CLIENTS))
                await asyncio.gather(*clients)
            case "time":
                return await self._time(asked["requests"])
        return {}

    async def _burst(self, budget: TenantBudget, tokens: int) -> None:
        answer = await self.ledger.reserve([budget], tokens)
        if isinstance(answer, Granted):
            self._note(tokens, answer)
            self.ledger.settle(answer, tokens)

    async def _load(self, budget: TenantBudget, tokens: int, until: float) -> None:
        while time.monotonic() < until:
            most = random.randint(1, tokens)
            answer = await self.ledger.reserve([budget], most)
            if not isinstance(answer, Granted):
                await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1.5))
                continue
            used = random.randint(1, most)
            self._note(used, answer)
            await asyncio.sleep(AGAIN_S)
            self.ledger.settle(answer, used)

    async def _time(self, requests: int) -> dict[str, float]:
        """A reservation and its settlement, in ms. The limits are never reached."""
        wide = [
            TenantBudget("wide", 10**9, 10**12, 10**6),
            TenantBudget("wide/model", 10**9, 10**12),
        ]
        while self.ledger.by_share:  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(0.1)
        took = []
        for _ in range(requests):
            began = time.perf_counter()
            answer = await self.ledger.reserve(wide, 1000)
            if isinstance(answer, Granted):
                took.append(time.perf_counter() - began)
                self.ledger.settle(answer, 500)
                await asyncio.sleep(0)
        tail = Tail.of(took)
        return {"p50_ms": percentile(took, 50) * 1e3, f"{tail.name}_ms": tail.value * 1e3}

    def _note(self, tokens: int, granted: Granted) -> None:
        scope = granted.budgets[0].scope
        line = f"{scope} {time.time():.6f} {tokens} {int(granted.by_share)}"
        print(line, file=self._file, flush=True)


async def main(url: str, gateways: int, limit: int, file: str) -> None:
    gateway = BudgetGateway(url, gateways, limit, file)
    running = asyncio.create_task(gateway.ledger.run())
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await gateway.do(json.loads(line))), flush=True)
    await gateway.ledger.leave()
    running.cancel()


if __name__ == "__main__":
    url, gateways, limit, path = sys.argv[1:]
    asyncio.run(main(url, int(gateways), int(limit), path))
