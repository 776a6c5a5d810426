"""The inference API: reads, checks, schedules and relays a request.

The gateway checks only the key, the size, the JSON, the model and some fields. The engine's own
server validates the rest, so everything that vLLM supports passes through. A late or failed lookup
for placement never fails a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from deployments.fleet.fleet import GatewaySettings
from deployments.gateway.answer.error_answers import request_id_of
from deployments.gateway.answer.one_try import RelayedAnswer
from deployments.gateway.answer.relay import Relay
from deployments.gateway.api.key_codes import MISSING_API_KEY
from deployments.gateway.api.load_codes import GATEWAY_ERROR
from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.gateway.checks.offered_tools import left_out_headers
from deployments.gateway.checks.request_checks import check_answer, check_fields, fits
from deployments.gateway.gateway_parts import GatewayParts
from deployments.gateway.intake import request_body
from deployments.gateway.intake.api_errors import ApiError, id_headers
from deployments.gateway.intake.api_keys import KeyHolder
from deployments.gateway.intake.bodies import Upload
from deployments.gateway.intake.keys_file import KeyRights
from deployments.gateway.intake.request import EngineRequest
from deployments.gateway.intake.request_options import RequestOptions, options_of, timeout_of
from deployments.gateway.models.model_routes import WeightedPools
from deployments.gateway.pool import scheduling
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.overflow_contract import renamed
from deployments.process.serve_log import current_request
from deployments.wire.inference_paths import COUNT_TOKENS, inference_path
from observability.traces.request_record import CLIENT_LEFT, AnswerEnd, RequestFacts, RequestRecord

# Returns a request's options, given the model of the overflow pool. Raises ApiError 400 and 403.
OptionsIn = Callable[[str | None], RequestOptions]


class Inference:
    """The inference API of one gateway. `relays`: the answers under way."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self.relays: WeakSet[Relay] = WeakSet()

    def holder_of(self, request: Request) -> KeyHolder:
        """Return the owner of the request's API key. Raises ApiError 401."""
        parts = self._parts
        try:
            return parts.keys.check(request.headers)
        except ApiError as error:
            parts.requests.error(error.code)
            if error.code != MISSING_API_KEY.name and request.client is not None:
                parts.wrong_keys.came_from(request.client.host)
            raise

    async def infer(self, request: Request) -> Response:
        """Answer a request. Raises ApiError: when it is invalid or rejected."""
        arrived = asyncio.get_running_loop().time()
        holder = self.holder_of(request)
        path, request_id = request.url.path, request_id_of(request)
        operation = inference_path(path).operation
        facts = RequestFacts(request_id, holder.tenant, path, operation)
        record = RequestRecord(facts, arrived)
        current_request.set(record.facts.request_id)
        try:
            return await self._admitted(request, record, holder)
        except ClientDisconnect:
            self._parts.watch.ended(record, AnswerEnd(_age_s(record)))
            return Response(status_code=CLIENT_LEFT)
        except BaseException as error:
            end = AnswerEnd(_age_s(record))
            if isinstance(error, ApiError):
                end = AnswerEnd.rejected(_age_s(record), error.status, error.code)
            elif isinstance(error, Exception):
                end = AnswerEnd.rejected(_age_s(record), 500, GATEWAY_ERROR.name)
            self._parts.watch.ended(record, end)
            raise

    async def _admitted(
        self, request: Request, record: RequestRecord, holder: KeyHolder
    ) -> Response:
        """Read, check and schedule the request. Raises ApiError: when it is invalid or rejected."""
        limits = self._parts.in_force.fleet.gateway
        timeout_s = timeout_of(request.headers, limits.request_timeout_s)
        deadline = record.arrived + timeout_s
        rights = holder.rights_in(limits)
        upload = Upload(
            request.headers,
            request.stream(),
            record,
            limits,
            timeout_s,
            holder.alone,
            count=partial(self._parts.budgets.count, record),
            check_model=partial(self._check_early, rights),
        )
        body, fields, form = await self._parts.bodies.take(upload)
        model = request_body.model_of(fields)
        await self._parts.pools.look_for(model)
        route, pool, named = await self._routed(
            model, record, fields, headers=request.headers, rights=rights
        )
        since_s = asyncio.get_running_loop().time() - record.connected
        record.traced(self._parts.tracing.request(request.headers, since_s))
        self._parts.watch.begun(record)
        self._parts.pools.check(rights, model)
        options_in = partial(options_of, request.headers, fields, rights)
        options = options_in()
        # for competing pools, `read_for` does it
        changes = {} if route.competing else check_fields(record, fields, pool.settings, limits)
        fields = {**fields, **changes}
        record.prioritized(options.priority)
        # `check` found a route, so no other gateway has unloaded the adapter yet
        adapter = self._parts.adapters.engine_adapter(named)
        engine_model = named if named in pool.settings.model_names else pool.model
        engine_request = EngineRequest(
            request_id=record.facts.request_id,
            tenant=record.facts.tenant,
            path=record.facts.path,
            body=body,
            changes=changes,
            cache_salt=self._parts.salts.of(
                record.facts.path,
                record.facts.tenant,
                limits.cache_group_of(record.facts.tenant),
                fields,
            ),
            model=engine_model if adapter is None else adapter.engine_name,
            is_renamed=adapter is not None or engine_model != model,
            arrived=record.arrived,
            deadline=deadline,
            timeout_s=timeout_s,
            timeout_limit_s=limits.request_timeout_s,
            record=record,
            adapter=adapter,
            form=form,
        )
        rivals = [self._parts.pools.by_name[name] for name in route.competing] or [pool]
        return await self._scheduled(request, engine_request, fields, options_in, rivals, limits)

    def _check_early(self, rights: KeyRights, model: str) -> None:
        """Check a large body's model before the rest is read. Raises ApiError 403 and 404."""
        if not self._parts.pools.may_be_an_adapter(model):
            self._parts.pools.check(rights, model)

    async def _routed(
        self,
        model: str,
        record: RequestRecord,
        fields: Mapping[str, Any],
        *,
        headers: Mapping[str, str],
        rights: KeyRights,
    ) -> tuple[WeightedPools, GatewayPool, str]:
        """Return the route of a model, the pool for this request, and the model or adapter there.
        Raises ApiError 404."""
        parts = self._parts
        route, budget_ms = (
            self._route_of(model, rights),
            parts.in_force.fleet.redis.lookup_budget_ms,
        )
        conversation = await parts.conversations.of(
            route, record, fields, headers, budget_ms / 1000
        )
        route = self._route_of(model, rights)  # it may have changed meanwhile
        to, by = route.choose(conversation)
        parts.conversations.keep(route, conversation, to)
        pool, named = parts.pools.by_name[route.pool_name(to)], model
        if route.adapter_pools:
            named = to
        is_adapter = named in parts.adapters.by_name or named in pool.settings.lora_names
        record.routed(route.name, pool.name, to=to, by=by, adapter=named if is_adapter else "")
        return route, pool, named

    def _route_of(self, model: str, rights: KeyRights) -> WeightedPools:
        """Return the current route of a model, with its canary. Raises ApiError 404."""
        route = self._parts.pools.route_of(model, rights)
        canary = self._parts.canaries.by_route.get(route.name)
        return route if canary is None else route.with_canary(canary.of, canary.share)

    async def _scheduled(
        self,
        request: Request,
        engine_request: EngineRequest,
        fields: Mapping[str, Any],
        options_in: OptionsIn,
        pools: Sequence[GatewayPool],
        limits: GatewaySettings,
    ) -> Response:
        """Read the prompt, charge the tenant's budgets, and find an engine of one of the pools.
        Raises ApiError."""
        parts = self._parts
        parts.fatal.check(engine_request)
        headers: Mapping[str, str] = {}
        try:
            async with asyncio.timeout_at(engine_request.deadline):
                pool, pool_request = await read_for(
                    pools, request, engine_request, fields, options_in, limits
                )
            engine_request = pool_request.engine
            headers = await parts.budgets.admit(pool_request, pool)
            headers = {**headers, **left_out_headers(engine_request.record.facts.left_out_tools)}
            if engine_request.path == COUNT_TOKENS and pool_request.prompt.known:
                return self._counted(engine_request.record, pool_request.tokens, headers)
            async with asyncio.timeout_at(engine_request.deadline):
                attempt = await scheduling.schedule(pool, pool_request, request.receive)
        except TimeoutError:
            raise engine_request.deadline_passed() from None
        except ApiError as error:
            error.headers = {**headers, **error.headers}
            raise
        header, record = pool.settings.session_header, engine_request.record
        name_of = partial(parts.conversations.name_of, header, record, fields, request.headers)
        parts.mirrors.offer(pool_request, pool, name_of)
        return self._relayed(engine_request, attempt, headers)

    def _counted(self, record: RequestRecord, tokens: int, headers: Mapping[str, str]) -> Response:
        """Return the answer of POST /v1/messages/count_tokens, in an engine's form."""
        self._parts.watch.ended(record, AnswerEnd(_age_s(record), "ok", 200))
        counted = {"input_tokens": tokens}
        body = {**counted, "context_management": {"original_input_tokens": tokens}}
        named = id_headers(inference_path(record.facts.path).errors, record.facts.request_id)
        return JSONResponse(body, headers={**headers, **named})

    def _relayed(
        self, request: EngineRequest, attempt: EngineAttempt, headers: Mapping[str, str]
    ) -> Relay:
        retries = self._parts.fatal.retries(
            request.tenant, self._parts.in_force.fleet.gateway.retries
        )
        fate = self._parts.fatal.fate_of(request, retries)
        answer = RelayedAnswer(self._parts.engines, attempt, headers, self._parts.watch, retries)
        relay = Relay(answer, attempt, fate, self._parts.counts)
        self.relays.add(relay)
        return relay


def _age_s(record: RequestRecord) -> float:
    """Return the seconds since a request arrived."""
    return asyncio.get_running_loop().time() - record.arrived


async def read_for(
    pools: Sequence[GatewayPool],
    request: Request,
    engine_request: EngineRequest,
    fields: Mapping[str, Any],
    options_in: OptionsIn,
    limits: GatewaySettings,
) -> scheduling.Read:
    """Read a request, and choose one of `pools` for it. `engine_request` is for the first pool.
    Raises ApiError 400 or 403: when no pool can serve it."""
    record, reads, refused = engine_request.record, [], None
    if engine_request.model != pools[0].model:  # an adapter, which the other pools do not have
        pools = pools[:1]
    for pool in pools:
        engine, pool_fields = engine_request, fields
        try:
            options = options_in(pool.overflow_model)
            if len(pools) > 1:
                changes = check_fields(record, fields, pool.settings, limits)
                engine, pool_fields = replace(engine, changes=changes), {**fields, **changes}
            if pool is not pools[0]:
                engine = renamed(engine, pool.model)
                pool_fields = {**pool_fields, "model": pool.model}
            read = await pool.read(engine, pool_fields, request.headers, options, request.receive)
            check_answer(read, pool, limits)
        except ApiError as error:
            refused = refused or error
        else:
            reads.append((pool, read))
    if not reads:
        assert refused is not None
        raise refused
    if len(pools) > 1:  # if a prompt is too long for all pools, an engine reports it
        reads = [read for read in reads if fits(*read)] or reads[:1]
        pool, read = scheduling.choose(reads)
    else:
        pool, read = reads[0]
    record.read_for(pool.name)
    return pool, read
