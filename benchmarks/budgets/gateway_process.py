"""One gateway's hand in the budgets, as a process of its own that may be killed at any moment.

It does what it reads, a line of JSON each, on the budget `scope`: "begin" waits until something is
granted, "burst" asks `requests` times at once, "load" again and again for so many seconds, "time"
one after the other. What is granted goes to a file at once: the scope, when by the machine's clock,
tokens used, and whether by share.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any, TextIO

from common.percentiles import Tail, percentile
from router.budget_book import books_of
from router.budget_ledger import BudgetLedger
from router.budgets import Granted, TenantBudget
from router.redis_client import connect

FLEET = "bench"
ASKERS = 4
# An asker that was refused asks again so soon.
AGAIN_S = 0.05


async def main(url: str, gateways: int, limit: int, file: TextIO) -> None:
    books = books_of(FLEET, url)
    ledger = BudgetLedger(connect(url, decode=False), FLEET, gateways, books=books)
    running = asyncio.create_task(ledger.run())
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        asked: dict[str, Any] = json.loads(line)
        budget = TenantBudget(asked["scope"], tokens=limit)
        answer = await DOES[asked["do"]](ledger, budget, asked, file)
        print(json.dumps(answer), flush=True)
    await ledger.leave()
    running.cancel()


async def begin(
    ledger: BudgetLedger, budget: TenantBudget, asked: dict[str, Any], file: TextIO
) -> dict[str, Any]:
    while not isinstance(await ledger.reserve([budget], 1), Granted):  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return {}


async def burst(
    ledger: BudgetLedger, budget: TenantBudget, asked: dict[str, Any], file: TextIO
) -> dict[str, Any]:
    await asyncio.sleep(max(0.0, asked["at"] - time.time()))
    answers = await asyncio.gather(
        *(ledger.reserve([budget], asked["tokens"]) for _ in range(asked["requests"]))
    )
    for answer in answers:
        if isinstance(answer, Granted):
            _note(file, asked["tokens"], answer)
            ledger.settle(answer, asked["tokens"])
    return {"granted": sum(isinstance(answer, Granted) for answer in answers)}


async def load(
    ledger: BudgetLedger, budget: TenantBudget, asked: dict[str, Any], file: TextIO
) -> dict[str, Any]:
    until = time.monotonic() + asked["for_s"]

    async def ask() -> None:
        while time.monotonic() < until:
            most = random.randint(1, asked["tokens"])
            answer = await ledger.reserve([budget], most)
            if not isinstance(answer, Granted):
                await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1.5))
                continue
            used = random.randint(1, most)
            _note(file, used, answer)
            await asyncio.sleep(AGAIN_S)
            ledger.settle(answer, used)

    await asyncio.gather(*(ask() for _ in range(ASKERS)))
    return {}


async def seconds(
    ledger: BudgetLedger, budget: TenantBudget, asked: dict[str, Any], file: TextIO
) -> dict[str, Any]:
    """Of a reservation and its settlement, one after the other; the limit is never reached."""
    wide = [TenantBudget("wide", 10**9, 10**12, 10**6), TenantBudget("wide/model", 10**9, 10**12)]
    while ledger.by_share:  # noqa: ASYNC110  # nothing tells
        await asyncio.sleep(0.1)
    took = []
    for _ in range(asked["requests"]):
        began = time.perf_counter()
        answer = await ledger.reserve(wide, 1000)
        if isinstance(answer, Granted):
            took.append(time.perf_counter() - began)
            ledger.settle(answer, 500)
            await asyncio.sleep(0)
    tail = Tail.of(took)
    return {"p50_ms": percentile(took, 50) * 1e3, f"{tail.name}_ms": tail.value * 1e3}


DOES = {"begin": begin, "burst": burst, "load": load, "time": seconds}


def _note(file: TextIO, tokens: int, granted: Granted) -> None:
    scope = granted.budgets[0].scope
    print(f"{scope} {time.time():.6f} {tokens} {int(granted.by_share)}", file=file, flush=True)


if __name__ == "__main__":
    url, gateways, limit, path = sys.argv[1:]
    with open(path, "a") as granted_file:  # noqa: PTH123
        asyncio.run(main(url, int(gateways), int(limit), granted_file))
