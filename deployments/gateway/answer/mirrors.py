"""Copies requests to another pool, compares the two answers, and drops those to the copies.

No tenant is charged for a copy. A copy starts after its original has a replica, and only if an
engine is predicted to begin it soon. So copies delay no request. Failures are counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starlette.types import Message

from deployments.gateway.answer.fate import Fate
from deployments.gateway.answer.final_count import FinalCounts
from deployments.gateway.answer.one_try import RelayedAnswer
from deployments.gateway.answer.relay import Relay
from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.gateway.attempt.engine_requests import EngineRequests
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.request import (
    EngineRequest,
    PoolRequest,
    cancelled,
    nobody_leaves,
)
from deployments.gateway.intake.request_options import RequestOptions
from deployments.gateway.pool import scheduling
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.overflow_contract import renamed
from deployments.gateway.pool.pools import Pools
from deployments.wire.inference_paths import inference_path
from observability.metrics.mirror_metrics import MirroredAnswer, MirrorMetrics, MirrorOutcome
from observability.traces.request_record import AnswerEnd, RequestFacts, RequestRecord

logger = logging.getLogger("ray.serve")

# Copies of one gateway at a time. With MOST_BODY_BYTES, this limits their memory.
MOST_COPIES = 32
MOST_BODY_BYTES = 1 << 20
# A copy goes only to an engine whose earlier work takes at most this long.
MOST_WAIT_S = 0.5
# After its original has ended, a copy gets LATE times that duration, and LEAST_LATE_S.
LATE, LEAST_LATE_S = 10.0, 1.0
# The tenant of copies in the pool's fair shares and its engines' logs.
TENANT = "(mirror)"
# Copies are not retried. With 1, `Fatal` rejects the next copy of a request that lost its engine.
_RETRIES = 1
# A request, and how it ended.
Ended = tuple[RequestRecord, AnswerEnd]


@dataclass(frozen=True)
class Mirror:
    """The pool that gets copies of a `share` of a model's conversations, from 0 to 1."""

    pool: str
    share: float

    def has(self, conversation: bytes | None) -> bool:
        """Return whether a conversation is copied; all gateways agree. None: a single request."""
        name = os.urandom(8) if conversation is None else conversation[-8:]
        return int.from_bytes(name, "big") < self.share * 2**64


class Fatal(Protocol):
    """The part of `deployments.gateway.checks.fatal_requests.FatalRequests` that copies need."""

    def check(self, request: EngineRequest) -> None: ...

    def retries(self, tenant: str, retries: int) -> int: ...

    def fate_of(self, request: EngineRequest, retries: int) -> Fate: ...


class Mirrors:
    """The mirrors of one gateway. `copies`: the number of copies under way."""

    def __init__(
        self,
        pools: Pools,
        engines: EngineRequests,
        counts: FinalCounts,
        metrics: MirrorMetrics,
        fatal: Fatal,
    ) -> None:
        self.by_route: Mapping[str, Mirror] = {}
        self.most_copies = MOST_COPIES
        self.least_late_s = LEAST_LATE_S
        self._pools = pools
        self._engines = engines
        self._counts = counts
        self._metrics = metrics
        self._fatal = fatal
        self._originals: dict[RequestRecord, asyncio.Future[AnswerEnd]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.copies = 0

    def change(self, by_route: Mapping[str, Mirror]) -> None:
        """Replace all mirrors, by model."""
        self.by_route = by_route
        for model in by_route:
            self._metrics.begins(model)

    def offer(
        self, request: PoolRequest, origin: GatewayPool, conversation: Callable[[], bytes | None]
    ) -> None:
        """Copy a placed request if the mirror has its conversation and none waits. Never raises."""
        try:
            self._offer(request, origin, conversation)
        except Exception:
            logger.exception("failed to copy request %s to a mirror", request.engine.request_id)

    def _offer(
        self, request: PoolRequest, origin: GatewayPool, conversation: Callable[[], bytes | None]
    ) -> None:
        engine, record = request.engine, request.engine.record
        mirror = self.by_route.get(record.facts.model)
        if mirror is None or not inference_path(record.facts.path).generates:
            return
        # the mirror's pool has none of the origin's adapters
        if engine.model != origin.model or len(engine.body) > MOST_BODY_BYTES:
            return
        if not mirror.has(conversation()):
            return
        is_up = bool(self._pools.by_name[mirror.pool].scheduler.board.loads())
        is_loaded = record.verdict == "overflowed" or origin.is_waited_for
        if is_loaded or not is_up or self.copies >= self.most_copies:
            self._metrics.ended(record.facts.model, "dropped")
            return
        original = self._originals[record] = asyncio.get_running_loop().create_future()
        copy = asyncio.create_task(self._copy(request, mirror, original))
        self.copies += 1
        self._tasks.add(copy)
        copy.add_done_callback(self._tasks.discard)

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        """Record that a client's request has ended."""
        if (original := self._originals.pop(record, None)) is not None and not original.done():
            original.set_result(end)

    async def close(self) -> None:
        """Cancel all copies."""
        for copy in list(self._tasks):
            await cancelled(copy)

    async def _copy(
        self, request: PoolRequest, mirror: Mirror, original: asyncio.Future[AnswerEnd]
    ) -> None:
        record = request.engine.record
        outcome: MirrorOutcome = "failed"
        try:
            try:
                ended = await self._answered(request, mirror, original)
            finally:
                self.copies -= 1
                del request  # frees its body: the client may take minutes to read its answer
            if isinstance(ended, str):
                outcome = ended
            else:
                outcome = self._compared((record, await original), ended)
        except asyncio.CancelledError:
            outcome = "uncompared"
            raise
        except Exception:  # a copy's failure must affect no request
            logger.exception("the copy of request %s failed", record.facts.request_id)
        finally:
            self._originals.pop(record, None)
            self._metrics.ended(record.facts.model, outcome)

    async def _placed(self, request: PoolRequest, mirror: Mirror) -> EngineAttempt | None:
        """Return the copy's try; None: no engine begins it soon, or copies lose their engines."""
        pool, record = self._pools.by_name[mirror.pool], request.engine.record
        now = asyncio.get_running_loop().time()
        facts = RequestFacts(
            f"{record.facts.request_id}-mirror",
            TENANT,
            record.facts.path,
            model=record.facts.model,
            pool=pool.name,
            priority="batch",
        )
        own = RequestRecord(facts, now)
        model = pool.settings.served_model_name
        engine = renamed(request.engine, model)
        engine = replace(
            engine, request_id=facts.request_id, tenant=TENANT, arrived=now, record=own
        )
        if not self._is_safe(engine):
            return None
        fields = {**request.fields, "model": model}
        options = RequestOptions("batch", "never", None)
        copy = await pool.read(engine, fields, request.headers, options, nobody_leaves)
        return scheduling.place_copy(pool, copy, MOST_WAIT_S)

    def _is_safe(self, copy: EngineRequest) -> bool:
        """Return False if this copy recently lost its engine, or several other copies did."""
        try:
            self._fatal.check(copy)
        except ApiError:
            return False
        return self._fatal.retries(TENANT, _RETRIES) > 0

    async def _answered(
        self, request: PoolRequest, mirror: Mirror, original: asyncio.Future[AnswerEnd]
    ) -> MirrorOutcome | Ended:
        """Answer the copy. Return how it ended, or the outcome if there is nothing to compare."""
        if (attempt := await self._placed(request, mirror)) is None:
            return "dropped"
        engine = attempt.request
        watch = _CopyWatch()
        answer = RelayedAnswer(self._engines, attempt, {}, watch, retries=0)
        fate = self._fatal.fate_of(engine, _RETRIES)
        relay = Relay(answer, attempt, fate, self._counts)
        answering = asyncio.ensure_future(relay({"type": "http"}, nobody_leaves, _thrown_away))
        try:
            either: set[asyncio.Future[Any]] = {answering, original}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if original.done() and original.result().outcome != "ok":
                return "uncompared"
            if original.done():
                late_s = LATE * original.result().duration_s + self.least_late_s
                await asyncio.wait({answering}, timeout=late_s)
                if not answering.done():
                    return "late"
            await answering
        finally:
            await cancelled(answering)
        assert watch.end is not None, "an answer that was relayed has ended"
        return engine.record, watch.end

    def _compared(self, original: Ended, copy: Ended) -> MirrorOutcome:
        """Compare the two answers, which have ended. Return the outcome."""
        (record, end), (_, of_copy) = original, copy
        if end.outcome != "ok":
            return "uncompared"
        if of_copy.outcome != "ok":
            return "invalid" if of_copy.outcome == "invalid" else "failed"
        self._metrics.compare(record.facts.model, _mirrored(*original), _mirrored(*copy))
        return "same" if of_copy.finish_reason == end.finish_reason else "other_reason"


def _mirrored(record: RequestRecord, end: AnswerEnd) -> MirroredAnswer:
    return MirroredAnswer(record.phases.engine_s, record.tpot_s(end), end.output_tokens)


class _CopyWatch:
    """Keeps a copy's `end` only, because clients' metrics must not count copies."""

    end: AnswerEnd | None = None

    def first_token(self, record: RequestRecord) -> None:
        pass

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        self.end = end


async def _thrown_away(message: Message) -> None:
    """Drop a message, like a client that reads everything at once."""
