"""Enforces tenants' budgets: 429 beyond a limit, and headers with the remaining amounts.

Before its placement, a request reserves the most it can use: the tokens of its prompt and, for each
sequence, its maximum length. When it ends, unused tokens are released, and tokens beyond the
reservation are charged. `router.budget_ledger` explains why grants never exceed a limit. Tenants
without limits cost nothing. Explanations and metrics report the same amounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from deployments.fleet.fleet import Fleet
from deployments.fleet.settings.objectives import TenantLimits
from deployments.gateway.checks.context_lengths import lengths_of
from deployments.gateway.checks.most_tokens import most_tokens
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.request import PoolRequest
from deployments.gateway.pool.pool import GatewayPool
from deployments.wire.inference_paths import inference_path
from observability.budget_metrics import BudgetMetrics
from observability.request_record import OVER_BUDGET, Charge, LimitLeft, RequestRecord
from router.budget_ledger import BudgetLedger
from router.budget_scripts import WINDOW
from router.budgets import Granted, Left, NotGranted, TenantBudget
from router.redis_client import AsyncRedis

SHARE_HEADER = "x-antefix-budget"
_UNKNOWN = Left(None, None)


@dataclass(frozen=True)
class _AdmittedRequest:
    """An admitted request.

    `beams_prompt`: its prompt's tokens if it uses beam search, otherwise None. For beams, an engine
    reads the prompt again with every token, and the prompt is charged once.
    """

    granted: Granted
    beams_prompt: int | None


class TenantBudgets:
    """One gateway's budgets, for all tenants of a fleet.

    `by_share`: Redis is unavailable, and the gateway grants its share of each limit. `books`: the
    result of `router.budget_book.books_of` for the fleet.
    """

    def __init__(
        self, redis: AsyncRedis, fleet: str, books: Path | None, metrics: BudgetMetrics
    ) -> None:
        self._metrics = metrics
        self.ledger = BudgetLedger(redis, fleet, 1, books=books)
        self._admitted: dict[RequestRecord, _AdmittedRequest] = {}
        # grants of requests that were counted before their bodies arrived
        self._early: dict[RequestRecord, Granted] = {}
        self._fleet: Fleet | None = None

    @property
    def under_way(self) -> int:
        """The number of requests that are counted and not settled."""
        return len(self._admitted.keys() | self._early.keys())

    @property
    def by_share(self) -> bool:
        return self.ledger.by_share

    @property
    def redis_is_full(self) -> bool:
        """Whether Redis rejects writes, because it is at `maxmemory` and evicts nothing."""
        return self.ledger.redis_is_full

    def change(self, fleet: Fleet) -> None:
        """Use the fleet's limits from now on; earlier use still counts."""
        self._fleet = fleet
        self.ledger.gateways = fleet.gateway.replicas
        self._metrics.change(
            {
                tenant: [
                    limit
                    for model, limits in (("", rights.limits), *rights.model_limits.items())
                    if (budget := _budget(tenant, limits)) is not None
                    for limit in _limits(budget, model)
                ]
                for tenant, rights in fleet.gateway.tenants.items()
            }
        )

    async def run(self) -> None:
        """Exchange grants with Redis until cancelled."""
        await self.ledger.run()

    async def close(self) -> None:
        await self.ledger.leave()

    async def count(self, record: RequestRecord, is_resume: bool) -> None:
        """Count a request before its body arrives; `admit` reserves its tokens later.

        It counts in requests per minute even if its body is invalid. Raises ApiError 429.
        """
        budgets = self._budgets_of(record.tenant, "")
        budgets = [replace(budget, tokens=None) for budget in budgets]
        if is_resume:  # its stream already counts as concurrent
            budgets = [replace(budget, concurrent=None) for budget in budgets]
        if granted := await self._counted(record, budgets):
            self._early[record] = granted

    async def count_resume(self, record: RequestRecord) -> None:
        """Count a request for the rest of a stream, in requests per minute only.

        Raises ApiError 429.
        """
        budgets = self._budgets_of(record.tenant, record.model)
        if record in self._early:
            budgets = [budget for budget in budgets if _is_of_model(budget)]
        await self._counted(
            record, [replace(each, tokens=None, concurrent=None) for each in budgets]
        )

    async def _counted(
        self, record: RequestRecord, budgets: Sequence[TenantBudget]
    ) -> Granted | None:
        budgets = [each for each in budgets if (each.requests, each.concurrent) != (None, None)]
        if not budgets:
            return None
        answer = await self.ledger.reserve(budgets, 0)
        if isinstance(answer, Granted):
            return answer
        self._metrics.refused(record.tenant, _model_of(answer.budget, record), answer.kind)
        raise _refusal(answer, record.tenant, 0, budgets, full=self.redis_is_full)

    async def admit(self, request: PoolRequest, pool: GatewayPool) -> Mapping[str, str]:
        """Reserve a request's budget. Return headers for its answer, none without limits.

        Raises ApiError: 429 beyond a limit, 400 for a request that needs more than a whole limit.
        """
        engine = request.engine
        budgets = self._budgets_of(engine.tenant, engine.record.model)
        if not budgets:
            return {}
        tokens = self._most(request, pool, budgets)
        answer = await self._reserve(engine.record, budgets, tokens)
        self._charge(request, answer, budgets, tokens)
        if isinstance(answer, NotGranted):
            error = _refusal(answer, engine.tenant, tokens, budgets, full=self.redis_is_full)
            self._refused(request, answer, pool, error)
            raise error
        beams_prompt = request.tokens if request.parameters.beam_search else None
        self._admitted[engine.record] = _AdmittedRequest(answer, beams_prompt)
        share = {SHARE_HEADER: "share"} if answer.by_share else {}
        return {**_headers(budgets, answer.left), **share}

    async def _reserve(
        self, record: RequestRecord, budgets: Sequence[TenantBudget], tokens: int
    ) -> Granted | NotGranted:
        """Reserve from all budgets or none; omit what `count` has reserved."""
        early = self._early.get(record)
        if early is None or budgets[0].scope != early.budgets[0].scope:
            return await self.ledger.reserve(budgets, tokens)
        own, *of_model = budgets
        own = replace(own, requests=None, concurrent=None)
        answer = await self.ledger.reserve([own, *of_model], tokens, len(of_model))
        if isinstance(answer, Granted) and of_model:  # the tenant's request was counted twice
            self.ledger.settle(replace(early, lease=""), 0, 0)
            self._early[record] = replace(early, requests=0)
        if not answer.left:
            return answer
        left = Left(early.left[0].requests, answer.left[0].tokens)
        return replace(answer, left=(left, *answer.left[1:]))

    def settle(self, record: RequestRecord) -> None:
        """Settle a request that has ended, with any outcome."""
        if (early := self._early.pop(record, None)) is not None:
            self.ledger.settle(early, 0, 0 if record.outcome == "rejected" else 1)
        admitted = self._admitted.pop(record, None)
        if admitted is not None:
            assert self._fleet is not None
            used = _used(record, admitted, self._fleet.gateway.cached_token_weight)
            refused = record.outcome == "rejected"
            self.ledger.settle(admitted.granted, used, 0 if refused else 1)

    def _charge(
        self,
        request: PoolRequest,
        answer: Granted | NotGranted,
        budgets: Sequence[TenantBudget],
        tokens: int,
    ) -> None:
        engine = request.engine
        limits = [
            limit
            for place, budget in enumerate(budgets)
            for limit in _limits(
                budget,
                engine.record.model if _is_of_model(budget) else "",
                answer.left[place] if place < len(answer.left) else _UNKNOWN,
            )
        ]
        engine.record.charge = Charge(
            tokens,
            tuple(limits),
            refused=answer.kind if isinstance(answer, NotGranted) else None,
            by_share=isinstance(answer, Granted) and answer.by_share,
        )
        self._metrics.found(engine.tenant, limits, asyncio.get_running_loop().time())

    def _refused(
        self, request: PoolRequest, answer: NotGranted, pool: GatewayPool, error: ApiError
    ) -> None:
        engine = request.engine
        model = _model_of(answer.budget, engine.record)
        self._metrics.refused(engine.tenant, model, answer.kind)
        waited_s = asyncio.get_running_loop().time() - engine.arrived
        with contextlib.suppress(Exception):  # an explanation must not change the answer
            pool.reporter.refused(request, error.message, waited_s)

    def _budgets_of(self, tenant: str, model: str) -> list[TenantBudget]:
        assert self._fleet is not None
        rights = self._fleet.gateway.tenants.get(tenant)
        if rights is None:
            return []
        name = quote(tenant, safe="")
        budgets = [_budget(name, rights.limits)]
        if (limits := rights.model_limits.get(model)) is not None:
            budgets.append(_budget(f"{name}/{quote(model, safe='')}", limits))
        return [budget for budget in budgets if budget is not None]

    def _most(
        self, request: PoolRequest, pool: GatewayPool, budgets: Sequence[TenantBudget]
    ) -> int:
        """Return the most tokens that the request can use. Raises ApiError 400 beyond a limit."""
        limits = [budget.tokens for budget in budgets if budget.tokens is not None]
        if not limits:
            return 0
        lengths = lengths_of(pool)
        if pool.overflow is not None and request.options.overflow != "never":
            lengths += lengths_of(pool.overflow)
        most = most_tokens(request, max(lengths, default=None))
        is_estimate = inference_path(request.engine.path).is_form
        if most is None or (is_estimate and most > min(limits)):  # reserve the whole limit
            return min(limits)
        if most > min(limits):
            message = (
                f"The request may use up to {most} tokens, but the limit is {min(limits)} per"
                " minute. Lower max_tokens, or shorten the prompt."
            )
            raise ApiError(400, message, code="tokens_above_limit", param="max_tokens")
        return most


def _used(record: RequestRecord, admitted: _AdmittedRequest, cached_token_weight: float) -> int:
    """Return the tokens to charge, as the engine reported them; unreported ones count in full."""
    granted = admitted.granted
    if record.prompt_tokens is None:
        was_sent = record.replica_id and record.outcome in ("cancelled", "deadline")
        return granted.tokens if was_sent else 0
    if record.output_tokens is None:
        return granted.tokens
    if admitted.beams_prompt is not None:
        return admitted.beams_prompt + record.output_tokens
    cached = (record.cached_tokens or 0) * (1 - cached_token_weight)
    return math.ceil(record.prompt_tokens - cached) + record.output_tokens


def _budget(scope: str, limits: TenantLimits) -> TenantBudget | None:
    numbers = limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent_requests
    return TenantBudget(scope, *numbers) if any(n is not None for n in numbers) else None


def _is_of_model(budget: TenantBudget) -> bool:
    return "/" in budget.scope


def _model_of(budget: TenantBudget, record: RequestRecord) -> str:
    return record.model if _is_of_model(budget) else ""


def _limits(budget: TenantBudget, model: str, left: Left = _UNKNOWN) -> Iterator[LimitLeft]:
    if budget.requests is not None:
        yield LimitLeft(model, "requests", budget.requests, left.requests)
    if budget.tokens is not None:
        yield LimitLeft(model, "tokens", budget.tokens, left.tokens)
    if budget.concurrent is not None:
        yield LimitLeft(model, "concurrent", budget.concurrent)


def _refusal(
    answer: NotGranted,
    tenant: str,
    tokens: int,
    budgets: Sequence[TenantBudget],
    *,
    full: bool,
) -> ApiError:
    """Return the 429 for a budget. `full`: Redis has no memory to count."""
    budget, seconds = answer.budget, max(1, math.ceil(answer.retry_after_s))
    of_model = " for this model" if _is_of_model(budget) else ""
    whose = f"The tenant {tenant[:100]!r}"
    remedy = f"Try again in {seconds} s."
    if answer.kind == "requests":
        limit = f"{budget.requests} requests per minute{of_model}"
        message = f"{whose} has reached its limit of {limit}."
    elif answer.kind == "tokens":
        message = (
            f"{whose} may use {budget.tokens} tokens per minute{of_model}. Too few are left for"
            f" this request, which may use {tokens}."
        )
        remedy = f"Try again in {seconds} s, or lower max_tokens."
    elif answer.kind == "concurrent":
        limit = f"{budget.concurrent} concurrent requests{of_model}"
        message = f"{whose} has reached its limit of {limit}."
    else:
        why = "is full and rejects writes" if full else "was unavailable or has just started"
        message = (
            f"The gateway does not know how much of its budget the tenant {tenant[:100]!r} has"
            f" used, because Redis {why}."
        )
    headers = _headers(budgets, answer.left) if answer.left else {}
    return ApiError(
        429, f"{message} {remedy}", code=OVER_BUDGET, retry_after=seconds, headers=headers
    )


def _headers(budgets: Sequence[TenantBudget], left: Sequence[Left]) -> dict[str, str]:
    """Return the headers of the budget with the least left.

    Source: https://platform.openai.com/docs/guides/rate-limits
    """
    headers = {}
    for kind in ("requests", "tokens"):
        known = [
            (remaining, limit)
            for budget, rest in zip(budgets, left, strict=True)
            if (limit := getattr(budget, kind)) is not None
            and (remaining := getattr(rest, kind)) is not None
        ]
        if known:
            remaining, limit = min(known)
            headers[f"x-ratelimit-limit-{kind}"] = str(limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(remaining)
            # the whole limit is available once this request has left the window
            headers[f"x-ratelimit-reset-{kind}"] = f"{WINDOW // 60}m{WINDOW % 60}s"
    return headers
