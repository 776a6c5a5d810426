"""Enforces tenants' budgets: 429 beyond a limit, and headers with the remaining amounts.

Before its placement, a request reserves the most it can use: the tokens of its prompt and, for each
sequence, its maximum length. When it ends, unused tokens are released, and tokens beyond the
reservation are charged. `router.budgets.budget_ledger` explains why grants never exceed a limit.
Tenants without limits cost nothing. Explanations and metrics report the same amounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from deployments.fleet.fleet import Fleet
from deployments.fleet.settings.objectives import Tenant, TenantLimits
from deployments.gateway.api.load_codes import BUDGET_UNKNOWN, RATE_LIMIT_EXCEEDED
from deployments.gateway.api.request_codes import TOKENS_ABOVE_LIMIT
from deployments.gateway.api.response_headers import (
    REQUESTS_LIMIT_HEADER,
    REQUESTS_REMAINING_HEADER,
    REQUESTS_RESET_HEADER,
    SHARE_HEADER,
    TOKENS_LIMIT_HEADER,
    TOKENS_REMAINING_HEADER,
    TOKENS_RESET_HEADER,
)
from deployments.gateway.checks.most_tokens import most_tokens
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.request import PoolRequest
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.wire.inference_paths import inference_path
from observability.metrics.budget_metrics import BudgetMetrics
from observability.traces.request_record import (
    AnswerEnd,
    Charge,
    LimitLeft,
    RequestRecord,
)
from router.budgets.budget_ledger import BudgetLedger
from router.budgets.budget_limits import Granted, Left, NotGranted, TenantBudget
from router.budgets.budget_scripts import WINDOW
from router.redis.redis_client import AsyncRedis

_UNKNOWN = Left(None, None)
_LIMIT_HEADERS = {
    "requests": (REQUESTS_LIMIT_HEADER, REQUESTS_REMAINING_HEADER, REQUESTS_RESET_HEADER),
    "tokens": (TOKENS_LIMIT_HEADER, TOKENS_REMAINING_HEADER, TOKENS_RESET_HEADER),
}


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

    `by_share`: Redis is unavailable, and the gateway grants its share of each limit. `places`: of
    the fleet's gateways (`router.budgets.budget_book`). `is_held`: a tenant gets one request at a
    time, because its requests end engines (`likely_causes`).
    """

    def __init__(
        self,
        redis: AsyncRedis,
        fleet: str,
        places: Path | None,
        metrics: BudgetMetrics,
        is_held: Callable[[str], bool] = lambda tenant: False,
    ) -> None:
        self._metrics = metrics
        self._is_held = is_held
        self.ledger = BudgetLedger(redis, fleet, 1, places=places)
        self._admitted: dict[RequestRecord, _AdmittedRequest] = {}
        # grants of requests that were counted before their bodies arrived
        self._early: dict[RequestRecord, Granted] = {}
        self._fleet: Fleet | None = None

    @property
    def under_way(self) -> int:
        """The number of requests that are counted and not settled."""
        return len(self._admitted.keys() | self._early.keys())

    @property
    def tenants_held(self) -> int:
        """The number of the fleet's tenants that get one request at a time."""
        tenants = self._fleet.gateway.tenants if self._fleet is not None else ()
        return sum(map(self._is_held, tenants))

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

    async def count(self, record: RequestRecord) -> None:
        """Count a request before its body arrives; `admit` reserves its tokens later.

        It counts in requests per minute even if its body is invalid. Raises ApiError 429.
        """
        budgets = self._budgets_of(record.facts.tenant, "")
        budgets = [replace(budget, tokens=None) for budget in budgets]
        budgets = [each for each in budgets if (each.requests, each.concurrent) != (None, None)]
        if not budgets:
            return
        answer = await self.ledger.reserve(budgets, 0)
        if isinstance(answer, NotGranted):
            self._metrics.rejected(
                record.facts.tenant, _model_of(answer.budget, record), answer.kind
            )
            raise _rejection(answer, record.facts.tenant, 0, budgets, full=self.redis_is_full)
        self._early[record] = answer

    async def admit(self, request: PoolRequest, pool: GatewayPool) -> Mapping[str, str]:
        """Reserve a request's budget. Return headers for its answer, none without limits.

        Raises ApiError: 429 beyond a limit, 503 if what is left of it is unknown, 400 for a request
        that needs more than a whole limit.
        """
        engine = request.engine
        budgets = self._budgets_of(engine.tenant, engine.record.facts.model)
        if not budgets:
            return {}
        tokens = self._most(request, pool, budgets)
        answer = await self._reserve(engine.record, budgets, tokens)
        self._charge(request, answer, budgets, tokens)
        if isinstance(answer, NotGranted):
            error = _rejection(answer, engine.tenant, tokens, budgets, full=self.redis_is_full)
            self._rejected(request, answer, pool, error)
            raise error
        beams_prompt = request.tokens if request.parameters.beam_search else None
        self._admitted[engine.record] = _AdmittedRequest(answer, beams_prompt)
        share: dict[str, str] = {SHARE_HEADER: "share"} if answer.by_share else {}
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

    def settle(self, record: RequestRecord, end: AnswerEnd) -> None:
        """Settle a request that has ended, with any outcome."""
        if (early := self._early.pop(record, None)) is not None:
            self.ledger.settle(early, 0, 0 if end.outcome == "rejected" else 1)
        admitted = self._admitted.pop(record, None)
        if admitted is not None:
            assert self._fleet is not None
            weight = self._fleet.gateway.cached_token_weight
            used = _used(record, end, admitted, weight)
            refused = end.outcome == "rejected"
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
                engine.record.facts.model if _is_of_model(budget) else "",
                answer.left[place] if place < len(answer.left) else _UNKNOWN,
            )
        ]
        charge = Charge(
            tokens,
            tuple(limits),
            exhausted=answer.kind if isinstance(answer, NotGranted) else None,
            by_share=isinstance(answer, Granted) and answer.by_share,
        )
        engine.record.charged(charge)
        self._metrics.found(engine.tenant, limits, asyncio.get_running_loop().time())

    def _rejected(
        self, request: PoolRequest, answer: NotGranted, pool: GatewayPool, error: ApiError
    ) -> None:
        engine = request.engine
        model = _model_of(answer.budget, engine.record)
        self._metrics.rejected(engine.tenant, model, answer.kind)
        waited_s = asyncio.get_running_loop().time() - engine.arrived
        with contextlib.suppress(Exception):  # an explanation must not change the answer
            pool.reporter.rejected(request, error.message, waited_s)

    def _budgets_of(self, tenant: str, model: str) -> list[TenantBudget]:
        assert self._fleet is not None
        rights, is_held = self._fleet.gateway.tenants.get(tenant), self._is_held(tenant)
        if rights is None and not is_held:
            return []
        rights, name = rights or Tenant(), quote(tenant, safe="")
        # without Redis, a share of one request may be none
        one = is_held and not self.by_share
        budgets = [_held_budget(name, rights.limits) if one else _budget(name, rights.limits)]
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
        lengths = pool.context_lengths
        if pool.overflow is not None and request.options.overflow != "never":
            lengths += pool.overflow.context_lengths
        most = most_tokens(request, max(lengths, default=None))
        is_estimate = inference_path(request.engine.path).is_form
        if most is None or (is_estimate and most > min(limits)):  # reserve the whole limit
            return min(limits)
        if most > min(limits):
            message = (
                f"The request may use up to {most:,} tokens, but the limit is {min(limits):,} per"
                " minute. Lower max_tokens, or shorten the prompt."
            )
            raise ApiError(TOKENS_ABOVE_LIMIT, message, param="max_tokens")
        return most


def _used(
    record: RequestRecord, end: AnswerEnd, admitted: _AdmittedRequest, cached_token_weight: float
) -> int:
    """Return the tokens to charge: those that the engine reported, whatever its answer was.

    Without a report, a request that was sent to an engine counts in full, any other not at all. One
    that the engine rejected before it generated anything is free.
    """
    granted = admitted.granted
    if record.prompt_tokens is None:
        return granted.tokens if record.was_sent else 0
    if end.output_tokens is None:
        return granted.tokens
    is_refused = end.outcome == "invalid" and not end.output_tokens
    if is_refused and inference_path(record.facts.path).generates:
        return 0
    if admitted.beams_prompt is not None:
        return min(admitted.beams_prompt, record.prompt_tokens) + end.output_tokens
    cached = (record.cached_tokens or 0) * (1 - cached_token_weight)
    return math.ceil(record.prompt_tokens - cached) + end.output_tokens


def _budget(scope: str, limits: TenantLimits) -> TenantBudget | None:
    numbers = limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent_requests
    return TenantBudget(scope, *numbers) if any(n is not None for n in numbers) else None


class _HeldBudget(TenantBudget):
    """The budget of a tenant that gets one request at a time."""


def _held_budget(scope: str, limits: TenantLimits) -> TenantBudget:
    return _HeldBudget(scope, limits.requests_per_minute, limits.tokens_per_minute, 1)


def _is_of_model(budget: TenantBudget) -> bool:
    return "/" in budget.scope


def _model_of(budget: TenantBudget, record: RequestRecord) -> str:
    return record.facts.model if _is_of_model(budget) else ""


def _limits(budget: TenantBudget, model: str, left: Left = _UNKNOWN) -> Iterator[LimitLeft]:
    if budget.requests is not None:
        yield LimitLeft(model, "requests", budget.requests, left.requests)
    if budget.tokens is not None:
        yield LimitLeft(model, "tokens", budget.tokens, left.tokens)
    if budget.concurrent is not None:
        yield LimitLeft(model, "concurrent", budget.concurrent)


def _rejection(
    answer: NotGranted,
    tenant: str,
    tokens: int,
    budgets: Sequence[TenantBudget],
    *,
    full: bool,
) -> ApiError:
    """Return the 429 for a budget, or a 503 if what is left is unknown. `full`: Redis has no memory
    to count."""
    budget, seconds = answer.budget, max(1, math.ceil(answer.retry_after_s))
    of_model = " for this model" if _is_of_model(budget) else ""
    whose = f"The tenant {tenant[:100]!r}"
    remedy = f"Try again in {seconds} s."
    if answer.kind == "requests":
        limit = f"{_counted(budget.requests, 'request')} per minute{of_model}"
        message = f"{whose} has reached its limit of {limit}."
    elif answer.kind == "tokens":
        message = (
            f"{whose} is limited to {budget.tokens:,} tokens per minute{of_model}. Too few of them"
            f" are left for this request, which could use up to {tokens:,}."
        )
        remedy = f"Try again in {seconds} s, or lower max_tokens."
    elif answer.kind == "concurrent" and isinstance(budget, _HeldBudget):
        message = (
            f"{whose} is limited to one request at a time for up to three minutes, because engines"
            " died while they ran its requests."
        )
        remedy = f"Wait until its current request ends, and try again in {seconds} s."
    elif answer.kind == "concurrent":
        limit = f"{_counted(budget.concurrent, 'concurrent request')}{of_model}"
        message = f"{whose} has reached its limit of {limit}."
    else:
        why = "is full and rejects writes" if full else "was unavailable or has just started"
        message = (
            f"The usage of the tenant {tenant[:100]!r} is currently unknown, because Redis {why}."
        )
    headers = _headers(budgets, answer.left) if answer.left else {}
    code = BUDGET_UNKNOWN if answer.kind == "unknown" else RATE_LIMIT_EXCEEDED
    return ApiError(code, f"{message} {remedy}", retry_after=seconds, headers=headers)


def _counted(number: int | None, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number:,} {what}s"


def _headers(budgets: Sequence[TenantBudget], left: Sequence[Left]) -> dict[str, str]:
    """Return the headers of the budget with the least left.

    Source: https://platform.openai.com/docs/guides/rate-limits
    """
    headers: dict[str, str] = {}
    for kind, (limited, left_over, resets) in _LIMIT_HEADERS.items():
        known = [
            (remaining, limit)
            for budget, rest in zip(budgets, left, strict=True)
            if (limit := getattr(budget, kind)) is not None
            and (remaining := getattr(rest, kind)) is not None
        ]
        if known:
            remaining, limit = min(known)
            headers[limited] = str(limit)
            headers[left_over] = str(remaining)
            # the whole limit is available once this request has left the window
            headers[resets] = f"{WINDOW // 60}m{WINDOW % 60}s"
    return headers
