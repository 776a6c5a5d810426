"""How a gateway routes one pool's requests, and explains each of them.

A request's prompt becomes tokens as its engine would make them, tokens become segment keys, and
the placer decides. What is predicted is then compared with what the engine confirms: in the
answer's headers, in metrics, and for a while under GET /antefix/requests/{id}.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import aiohttp

from autoscaling.slo import PriorityClass
from deployments.fleet.fleet import Fleet
from deployments.gateway import request_body
from deployments.gateway.errors import ApiError
from deployments.gateway.explanations import Explanations
from deployments.gateway.relay import EngineRequest
from deployments.gateway.renderer_client import RendererClient
from deployments.prompt import cache_salt
from observability.metrics import RoutingMetrics, Served, ShadowChoice
from router.demand import Decided, DemandCounters, read_decided, tell
from router.index import Depths
from router.loss import split
from router.placement import Placement, reusable_tokens
from router.placer import Attempt, Placer
from router.policies import POLICY_NAMES, PlacementRequest
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.segment_keys import Namespace, SegmentHasher, index_secret

logger = logging.getLogger("ray.serve")

POLICY_HEADER = "x-antefix-policy"
# A longer body is tokenized in a thread: its milliseconds would be everybody's.
LONG_BODY_BYTES = 16384
DECIDED_PERIOD_S = 1.0


@dataclass(frozen=True, repr=False)
class Connections:
    """What a pool's router talks through. `text` decodes Redis replies, `binary` does not."""

    text: AsyncRedis
    binary: AsyncRedis
    session: aiohttp.ClientSession
    secret: str


@dataclass(frozen=True)
class Prompt:
    """One request's prompt as far as it is known here; `held` None: the index did not say."""

    request: PlacementRequest
    known: bool
    held: Depths | None
    read_s: float
    lookup_s: float


class PoolRouter:
    """`placer` is public: `status` reads its board.

    `demand` is what the autoscaler hears of the pool, `decided` what it last said; `held` requests
    wait for Ray Serve to have a replica at all.
    """

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        connections: Connections,
        explanations: Explanations,
        metrics: RoutingMetrics,
    ) -> None:
        self.name = name
        self._pool = pool = fleet.pools[name]
        self._explanations = explanations
        self._metrics = metrics
        self._hasher = SegmentHasher(index_secret(connections.secret))
        self.placer = Placer(
            connections.text,
            connections.binary,
            fleet.board_of(name),
            pool.policy,
            pool.shadow_policy,
            fleet.redis.lookup_budget_ms / 1000,
            scaled=pool.is_scaled,
        )
        self.demand = DemandCounters()
        self.decided: Decided | None = None
        self._read_decided = partial(read_decided, connections.text, fleet.board_of(name))
        self.held = 0
        # warm replicas that have been given traffic -> when the request came that needed them
        self._promoted: dict[str, float] = {}
        self._tell_demand = partial(
            tell, connections.text, fleet.board_of(name), secrets.token_hex(8), self.demand
        )
        self._renderer = RendererClient(connections.session, connections.secret, self.placer.board)

    async def run(self) -> None:
        loops = [self.placer.run(), self._renderer.run(), self._tell_demand()]
        if self._pool.is_scaled:
            loops.append(self._follow_autoscaler())
        await asyncio.gather(*loops)

    async def _follow_autoscaler(self) -> None:
        while True:
            with contextlib.suppress(*REDIS_FAILURES):  # what is shown is old by then
                self.decided = await self._read_decided()
            await asyncio.sleep(DECIDED_PERIOD_S)

    async def promote(self, since: float) -> bool:
        """Let a warm replica take traffic; `since` is when the request came that needs it."""
        board = self.placer.board
        before = board.loads().keys()
        if not await board.promote():
            return False
        for replica_id in board.loads().keys() - before:
            self._promoted[replica_id] = since
            self._metrics.promoted()
        return True

    async def read(
        self, request: EngineRequest, fields: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Prompt:
        """What is to be known before placing. Never raises, never waits beyond the budget."""
        began = time.monotonic()
        session = headers.get(self._pool.session_header)
        if len(request.body) > LONG_BODY_BYTES:
            placed, known = await asyncio.to_thread(self._placed, request, fields, session)
        else:
            placed, known = self._placed(request, fields, session)
        looked, skips = time.monotonic(), self.placer.index.breaker_open
        held: Depths | None = {} if known else None  # {}: too short for the index to tell
        if placed.keys:
            held = await self.placer.look_up(placed.keys)
        ended = time.monotonic()
        if placed.keys:
            result = "skipped" if skips else "failed" if held is None else "ok"
            self._metrics.looked_up(ended - looked, result)
        return Prompt(placed, known, held, looked - began, ended - looked)

    def _placed(
        self, request: EngineRequest, fields: Mapping[str, Any], session: str | None
    ) -> tuple[PlacementRequest, bool]:
        prompt_tokens, segment_tokens = self._renderer.prompt_tokens, self.placer.segment_tokens
        prompts = prompt_tokens.token_ids(request.path, fields) if prompt_tokens else None
        if not prompts:
            guess = request_body.estimate_prompt_tokens(request.body)
            return PlacementRequest(guess, (), session), False
        keys: list[bytes] = []
        if segment_tokens:
            namespace = Namespace(
                model=self._pool.model,
                revision=self._pool.revision,
                lora=request.model if request.model in self._pool.lora_names else None,
                cache_salt=cache_salt(fields),
            )
            with contextlib.suppress(ValueError):  # no such token id: the engine's to refuse
                # of several prompts, the longest has the most to reuse
                keys = self._hasher.keys(namespace, max(prompts, key=len), segment_tokens)
        return PlacementRequest(sum(map(len, prompts)), tuple(keys), session), True

    def index_status(self) -> dict[str, Any]:
        """How this gateway process fares with the prefix index; times are milliseconds."""
        index = self.placer.index
        recent = sorted(index.recent_seconds)
        return {
            "answers": not index.breaker_open,
            "prompts_known": self._renderer.prompt_tokens is not None,
            "lookups": index.lookups,
            "failures": index.failures,
            "skipped": index.skipped,
            "lookup_p50_ms": round(recent[len(recent) // 2] * 1000, 3) if recent else None,
            "ttft_prediction_error": self.placer.calibration.error,
        }

    def refresh_metrics(self, states: Mapping[str, int], target: int) -> None:
        """Bring the gauges up to date; replicas by state, and how many there should be."""
        self._metrics.breaker(self.placer.index.breaker_open)
        self._metrics.calibration(self.placer.calibration.error)
        self._metrics.replicas(states, target)
        if self.decided is not None:
            decided = self.decided
            self._metrics.autoscaler(decided.demand, decided.arrivals, decided.forecast)

    def learn(
        self,
        attempt: Attempt,
        request: EngineRequest,
        prompt: Prompt,
        outcome: Outcome,
        admitted: Admitted,
    ) -> None:
        """One request got its first token: compare, count and keep the explanation."""
        if (since := self._promoted.pop(outcome.replica_id, None)) is not None:
            self._metrics.promotion(request.arrived + outcome.ttft - since)
        placement, slot_of = attempt.placement, {c.replica_id: c for c in attempt.placement.ranked}
        served = slot_of.get(outcome.replica_id)
        loss: dict[str, int] = {}
        if served is not None and outcome.prompt_tokens is not None:
            self.placer.observed(served, outcome.ttft)
            loss = vars(
                split(
                    reusable=reusable_tokens(outcome.prompt_tokens, self.placer.segment_tokens),
                    best_cached=placement.best_cached_tokens,
                    chosen_cached=served.confirmed_tokens,
                    confirmed=outcome.cached_tokens or 0,
                    signal=placement.signal and bool(prompt.request.keys),
                    all_synced=all(c.synced for c in placement.ranked),
                )
            )
        if outcome.prompt_tokens is not None:
            self._metrics.served(
                Served(
                    policy=placement.policy,
                    signal=placement.signal,
                    predicted_ttft=served.predicted_ttft if served else None,
                    prompt_tokens=outcome.prompt_tokens,
                    cached_predicted=served.cached_tokens if served else 0,
                    cached_confirmed=outcome.cached_tokens,
                    loss=loss,
                )
            )
        if shadow := placement.shadow:
            agrees = shadow.replica_id == outcome.replica_id
            self._metrics.shadow(ShadowChoice(shadow.policy, agrees, shadow.regret))
        told = self._told(request, prompt, placement, admitted.as_dict())
        told |= {
            "replica": outcome.replica_id,
            "cached_tokens": {
                "predicted": served.cached_tokens if served else None,
                "in_index": served.confirmed_tokens if served else None,
                "confirmed": outcome.cached_tokens,
            },
            "ttft_s": {
                "predicted": served.predicted_ttft if served else None,
                "observed": outcome.ttft,
            },
            "reuse_loss_tokens": loss,
            "shadow": vars(placement.shadow) if placement.shadow else None,
        }
        told["prompt_tokens"]["confirmed"] = outcome.prompt_tokens
        self._explanations.keep(request.tenant, request.request_id, told)

    def refused(
        self,
        request: EngineRequest,
        prompt: Prompt,
        placement: Placement,
        admission: Mapping[str, Any],
    ) -> None:
        """A request was not let in: keep the explanation of that."""
        told = self._told(request, prompt, placement, admission)
        self._explanations.keep(request.tenant, request.request_id, told)

    def _told(
        self,
        request: EngineRequest,
        prompt: Prompt,
        placement: Placement,
        admission: Mapping[str, Any],
    ) -> dict[str, Any]:
        slo = self._pool.slo.by_class().get(admission["priority"])
        return {
            "request_id": request.request_id,
            "tenant": request.tenant,
            "at": time.time(),
            "pool": self.name,
            "model": request.model,
            "path": request.path,
            "policy": placement.policy,
            "admission": dict(admission),
            "slo_ttft_s": slo.ttft_s if slo else None,
            "index_answered": prompt.held is not None,
            "prompt_known": prompt.known,
            "segments": len(prompt.request.keys),
            "popularity": round(placement.popularity, 2),
            "prompt_tokens": {"counted": prompt.request.prompt_tokens, "confirmed": None},
            "read_s": prompt.read_s,
            "lookup_s": prompt.lookup_s,
            "candidates": placement.ranked,
        }


@dataclass(frozen=True)
class Outcome:
    """What came of a request: by whom, `ttft` in seconds, tokens as the engine counts them."""

    replica_id: str
    ttft: float
    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True)
class Admitted:
    """How a request was let in: `waited_s` seconds after it came."""

    priority: PriorityClass
    verdict: Literal["admitted", "overflowed"]
    reason: str
    waited_s: float

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self)}


def policy_of(headers: Mapping[str, str]) -> str | None:
    """The policy a request asks for itself. Raises ApiError 400 for one that does not exist."""
    policy = headers.get(POLICY_HEADER)
    if policy is not None and policy not in POLICY_NAMES:
        message = (
            f"{POLICY_HEADER} is {policy[:100]!r}; it must be one of {', '.join(POLICY_NAMES)}"
        )
        raise ApiError(400, message, code="unknown_policy", param=POLICY_HEADER)
    return policy
