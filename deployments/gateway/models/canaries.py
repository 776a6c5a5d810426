"""Canaries of a fleet's models: gateways collect evidence from requests, and decide together.

key                       value                                                    lifetime
canary:<route>            `CanaryState`, JSON, signed                              permanent
canary_won:<route>        hash: gateway -> `Won`, its part of the evidence, JSON,  WON_S after the
                          signed                                                   last write

Each gateway evaluates the requests that it serves as they end. Once a second, or as soon as its own
evidence suffices, it reads the evidence of the others, and moves or aborts the canary. Without
Redis, canaries stay on their steps.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

import msgspec

from common.loops import forever
from common.percentiles import percentile
from deployments.fleet.fleet import Fleet
from deployments.fleet.settings.model_names import ModelRoute
from deployments.gateway.models.canary_state import (
    CanaryPlan,
    CanaryState,
    first,
    is_of_later_settings,
    next_state,
)
from deployments.gateway.models.canary_test import (
    LEAST_OF_BASE,
    PERCENTILE,
    CanaryRule,
    EndedRequest,
    LogWealths,
    RecentBase,
    add,
    epoch_of,
    won_by,
    worse_in,
)
from observability.metrics.canary_metrics import CanaryReading
from observability.traces.request_record import AnswerEnd, RequestRecord
from router.index.slots import REDIS_TIMEOUT_S
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis.signature import Signer, opened, signed

logger = logging.getLogger("ray.serve")

PERIOD_S = 1.0
WON_S = 86_400
# Limits on the retained requests of the base, in number and age: older ones had another load.
KEPT_OF_BASE, BASE_S = 100, 300.0
# Replaces a value, unless another gateway did first: sets KEYS[1] to ARGV[2] if it is ARGV[1].
_REPLACE = """
local found = redis.call('GET', KEYS[1])
if (found or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


# For requests of the base: the Unix time of each request's end, and its TTFT or TPOT in seconds.
TimesOfBase = deque[tuple[float, float]]


class Won(msgspec.Struct, frozen=True):
    """One gateway's evidence, from the canary's requests that it served."""

    id: str
    log_wealths: LogWealths
    requests: int


_state = msgspec.json.Decoder(CanaryState).decode
_won = msgspec.json.Decoder(Won).decode


@dataclass
class Canary:
    """The canary of one route, in one gateway.

    `of`: the name of the pool, or of the adapter. `adopted`: the Unix time at which the gateway
    received its settings. `state` None: not read yet, so the canary gets no requests.
    `base_rejected_at`: the Unix time at which the others last rejected a request of the route.
    """

    route: str
    of: str
    is_adapter: bool
    plan: CanaryPlan
    rule: CanaryRule
    adopted: float
    state: CanaryState | None = None
    raw: str = ""
    requests: int = 0
    log_wealths: LogWealths = field(default_factory=dict)
    base_ttft_s: TimesOfBase = field(default_factory=lambda: deque(maxlen=KEPT_OF_BASE))
    base_tpot_s: TimesOfBase = field(default_factory=lambda: deque(maxlen=KEPT_OF_BASE))
    base_reasons: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_OF_BASE))
    base_rejected_at: float = -math.inf

    @property
    def share(self) -> float:
        """The canary's share of new conversations, from 0 to 1."""
        return self.state.share(self.plan) if self.state is not None else 0.0

    def ended(self, record: RequestRecord, end: AnswerEnd, now: float) -> None:
        """Add a request of the route that has ended. `now` is Unix time."""
        if end.outcome == "cancelled" or end.outcome == "invalid":
            return
        is_rejected, tpot_s = end.outcome == "rejected", record.tpot_s(end)
        if record.facts.routed_to != self.of:
            if is_rejected:
                self.base_rejected_at = now
            if record.ttft_s is not None:
                self.base_ttft_s.append((now, record.ttft_s))
            if tpot_s is not None:
                self.base_tpot_s.append((now, tpot_s))
            if end.finish_reason:
                self.base_reasons.append(end.finish_reason)
            return
        if is_rejected and now - self.base_rejected_at < BASE_S:
            return  # all of them are full
        self.requests += 1
        base = RecentBase(
            _percentile_of(self.base_ttft_s, now),
            _percentile_of(self.base_tpot_s, now),
            Counter(self.base_reasons),
        )
        failed = is_rejected or end.outcome in ("failed", "deadline")
        # a rare adapter waits for its load, however good it is
        ttft_s = None if self.is_adapter else record.ttft_s
        request = EndedRequest(ttft_s, tpot_s, failed, end.finish_reason)
        add(self.log_wealths, won_by(request, base, self.rule), self.epoch(now))

    def epoch(self, now: float) -> int:
        """Return the number of the test's current epoch. `now` is Unix time."""
        return 0 if self.state is None else epoch_of(self.state.begun, now)

    def is_worse(self, now: float) -> bool:
        """Return whether this gateway's requests suffice to show that the canary is worse."""
        return worse_in([self.log_wealths], self.rule, self.epoch(now)) is not None


def _percentile_of(times: TimesOfBase, now: float) -> float | None:
    recent = [seconds for at, seconds in times if at > now - BASE_S]
    return percentile(recent, PERCENTILE) if len(recent) >= LEAST_OF_BASE else None


def canary_of(name: str, route: ModelRoute) -> Canary | None:
    """Return the canary of a route in the fleet file; None if it has none."""
    settings = route.canary
    if settings is None:
        return None
    text = settings.model_dump_json(exclude_none=True)
    plan = CanaryPlan(
        blake2b(text.encode(), digest_size=8).hexdigest(),
        [percent / 100 for percent in settings.steps],
        settings.step_s,
        settings.requests,
    )
    rule = CanaryRule(settings.alpha, settings.error_rate)
    is_adapter = settings.adapter is not None
    return Canary(name, settings.of, is_adapter, plan, rule, _now())


class Canaries:
    """One gateway's canaries. `redis` has `decode_responses`; `fleet` is `FleetBase.redis_name`."""

    def __init__(self, redis: AsyncRedis, fleet: str, signer: Signer) -> None:
        self._redis = redis
        self._fleet = fleet
        self._signer = signer
        self._gateway = uuid.uuid4().hex
        self._looks = asyncio.Event()
        self.by_route: Mapping[str, Canary] = {}

    def change(self, fleet: Fleet) -> None:
        """Use the fleet's canaries from now on. Unchanged ones continue."""
        found = {}
        for name, route in fleet.models.items():
            if (canary := canary_of(name, route)) is not None:
                known = self.by_route.get(name)
                is_known = known is not None and known.plan.id == canary.plan.id
                found[name] = known if is_known and known is not None else canary
        self.by_route = found
        self._looks.set()

    def readings(self) -> dict[str, CanaryReading]:
        """Return the canaries' readings for metrics, by model."""
        return {
            name: CanaryReading(
                canary.share, canary.state is not None and canary.state.status == "aborted"
            )
            for name, canary in self.by_route.items()
        }

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        """Add a request that has ended, of any model."""
        if (canary := self.by_route.get(record.facts.model)) is not None:
            canary.ended(record, end, _now())
            if canary.share and canary.is_worse(_now()):
                self._looks.set()

    async def run(self) -> None:
        """Evaluate the canaries together with other gateways, until cancelled."""
        await forever(
            "canaries",
            self._step,
            fails="failed to judge canaries; keeping their steps",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    async def end(self, route: str, status: str, why: str) -> CanaryState | None:
        """Promote or abort a canary, for an operator.

        Return its state; None if another gateway changed it meanwhile, or has later settings.
        Raises one of REDIS_FAILURES.
        """
        canary = self.by_route[route]
        if not await self._read(canary):
            return None
        assert canary.state is not None
        ended = canary.state.ended("promoted" if status == "promoted" else "aborted", why, _now())
        return ended if await self._replace(canary, ended) else None

    async def _step(self) -> None:
        self._looks.clear()
        for canary in list(self.by_route.values()):
            await self._judge(canary)
        try:
            async with asyncio.timeout(PERIOD_S if self.by_route else None):
                await self._looks.wait()
        except TimeoutError:
            return

    async def _judge(self, canary: Canary) -> None:
        if not await self._read(canary):
            return
        assert canary.state is not None
        own = Won(canary.plan.id, canary.log_wealths, canary.requests)
        won = [own, *await self._won_by_others(canary, own)]
        found = next_state(
            canary.state,
            canary.plan,
            worse_in((each.log_wealths for each in won), canary.rule, canary.epoch(_now())),
            sum(each.requests for each in won),
            _now(),
        )
        if found is not None and await self._replace(canary, found):
            level = logging.WARNING if found.status == "aborted" else logging.INFO
            logger.log(level, "canary of %s: %s. %s", canary.route, found.status, found.why)

    async def _read(self, canary: Canary) -> bool:
        """Read the canary's state from Redis, or write its first one. Return whether that worked.

        False: other gateways have later settings, whose canary must not be replaced.
        """
        key = self._key("canary", canary)
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            [found] = await cast(Awaitable[list[str | None]], self._redis.mget([key]))
        canary.raw, before = found or "", None
        text = None if found is None else opened(self._signer, key, found)
        if text is not None:
            try:
                before = _state(text)
            except (msgspec.MsgspecError, ValueError):  # written by hand
                before = None
        if before is not None and before.id == canary.plan.id:
            canary.state = before
            return True
        if before is not None and is_of_later_settings(before, canary.adopted, _now()):
            return False
        begun = first(canary.plan, before, _now())
        return await self._replace(canary, begun) or await self._read(canary)

    async def _replace(self, canary: Canary, state: CanaryState) -> bool:
        key = self._key("canary", canary)
        text = signed(self._signer, key, msgspec.json.encode(state).decode())
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            replaced = await cast(
                Awaitable[int], self._redis.eval(_REPLACE, 1, key, canary.raw, text)
            )
        if replaced:
            canary.state, canary.raw = state, text
        return bool(replaced)

    async def _won_by_others(self, canary: Canary, own: Won) -> list[Won]:
        key = self._key("canary_won", canary)
        text = signed(self._signer, key, msgspec.json.encode(own).decode())
        async with (
            asyncio.timeout(REDIS_TIMEOUT_S),
            self._redis.pipeline(transaction=False) as pipe,
        ):
            pipe.hset(key, self._gateway, text)
            pipe.expire(key, WON_S)
            pipe.hgetall(key)
            *_, found = await pipe.execute()
        won = []
        for gateway, value in found.items():
            theirs = opened(self._signer, key, value)
            if gateway == self._gateway or theirs is None:
                continue
            try:
                each = _won(theirs)
            except (msgspec.MsgspecError, ValueError):
                continue
            if each.id == canary.plan.id:
                won.append(each)
        return won

    def _key(self, kind: str, canary: Canary) -> str:
        return redis_keys.key(self._fleet, f"{kind}:{canary.route}")


def _now() -> float:
    return time.time()
