"""A ledger that grants everything, and remembers what each request reserved and was charged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from router.budgets.budget_limits import Granted, Left, TenantBudget


class Spending:
    """Stands where a gateway's budgets have `router.budgets.budget_ledger.BudgetLedger`.

    `settled`: tokens that each ended request reserved, and was charged.
    """

    by_share = redis_is_full = False
    gateways = 1

    def __init__(self) -> None:
        self.settled: list[tuple[int, int]] = []

    async def reserve(
        self, budgets: Sequence[TenantBudget], tokens: int, requests: int = 1
    ) -> Granted:
        left = [Left(None, None) for _ in budgets]
        return Granted(
            budgets=budgets,
            requests=requests,
            tokens=tokens,
            lease="",
            left=left,
            by_share=False,
            bucket=0,
            local_bucket=0,
            epoch=0,
        )

    def settle(self, granted: Granted, tokens: int, requests: int = 1) -> None:
        self.settled.append((granted.tokens, tokens))

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def leave(self) -> None:
        pass
