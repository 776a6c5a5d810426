"""How a gateway routes one pool's requests, and explains each of them.

A request's prompt becomes tokens as its engine would make them, tokens become segment keys, and
the placer decides. What is predicted is then compared with what the engine confirms: in the
answer's headers, in metrics, and for a while under GET /antefix/requests/{id}.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from deployments import request_body
from deployments.confirmation import CACHED_TOKENS_HEADER, LOAD_HEADER, PROMPT_TOKENS_HEADER
from deployments.errors import ApiError
from deployments.explanations import Explanations
from deployments.fleet import Fleet
from deployments.prompt import cache_salt
from deployments.relay import EngineRequest
from deployments.renderer_client import RendererClient
from deployments.transport import Route, Slot
from observability.metrics import RoutingMetrics, Served, ShadowChoice
from router.index import Depths
from router.load import LoadReport
from router.loss import split
from router.placement import reusable_tokens
from router.placer import Attempt, Placer
from router.policies import POLICY_NAMES, Candidate, PlacementRequest
from router.redis_client import AsyncRedis
from router.segment_keys import Namespace, SegmentHasher, index_secret

logger = logging.getLogger("ray.serve")

POLICY_HEADER = "x-antefix-policy"
# A longer body is tokenized in a thread: its milliseconds would be everybody's.
LONG_BODY_BYTES = 16384


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
    """`placer` is public: `status` reads its board."""

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        connections: Connections,
        explanations: Explanations,
        metrics: RoutingMetrics,
    ) -> None:
        self._name = name
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
        )
        self._renderer = RendererClient(connections.session, connections.secret, self.placer.board)

    async def run(self) -> None:
        await asyncio.gather(self.placer.run(), self._renderer.run())

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

    def attempt(
        self, request: EngineRequest, prompt: Prompt, policy: str | None, failed: frozenset[str]
    ) -> RoutedAttempt:
        return RoutedAttempt(
            self, request, prompt, self.placer.place(prompt.request, prompt.held, failed, policy)
        )

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

    def refresh_metrics(self) -> None:
        """Bring the gauges up to date."""
        self._metrics.breaker(self.placer.index.breaker_open)
        self._metrics.calibration(self.placer.calibration.error)

    def learn(
        self, attempt: Attempt, request: EngineRequest, prompt: Prompt, outcome: Outcome
    ) -> None:
        """One request got its first token: compare, count and keep the explanation."""
        placement, slot_of = attempt.placement, {c.replica_id: c for c in attempt.placement.ranked}
        served = slot_of.get(outcome.replica_id)
        loss: dict[str, int] = {}
        if served is not None and outcome.prompt_tokens is not None:
            self.placer.observed(served, outcome.ttft)
            loss = asdict(
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
                    ttft=outcome.ttft,
                    prompt_tokens=outcome.prompt_tokens,
                    cached_predicted=served.cached_tokens if served else 0,
                    cached_confirmed=outcome.cached_tokens,
                    loss=loss,
                )
            )
        if shadow := placement.shadow:
            agrees = shadow.replica_id == outcome.replica_id
            self._metrics.shadow(ShadowChoice(shadow.policy, agrees, shadow.regret))
        self._explanations.keep(
            request.tenant,
            request.request_id,
            _explanation(self._name, attempt, request, prompt, outcome, served, loss),
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a request: by whom, `ttft` in seconds, tokens as the engine counts them."""

    replica_id: str
    ttft: float
    prompt_tokens: int | None
    cached_tokens: int | None


class RoutedAttempt:
    """One try at a request (`relay.Attempt`)."""

    def __init__(
        self, router: PoolRouter, request: EngineRequest, prompt: Prompt, attempt: Attempt
    ) -> None:
        self._router = router
        self._request = request
        self._prompt = prompt
        self._attempt = attempt
        self._served_by: str | None = None
        chosen = attempt.chosen
        self.expected_cached = chosen.cached_tokens if chosen else 0
        self.route = Route(
            ranked_ids=attempt.placement.replica_ids,
            best_url=chosen.url if chosen else None,
            ticket=attempt.ticket,
            is_alive=lambda replica_id: replica_id in router.placer.board.loads(),
        )

    def answered(
        self, slot: Slot, engine_headers: Mapping[str, str], ttft: float
    ) -> Mapping[str, str]:
        self._served_by = slot.replica_id
        outcome = Outcome(
            slot.replica_id,
            ttft,
            _count(engine_headers, PROMPT_TOKENS_HEADER),
            _count(engine_headers, CACHED_TOKENS_HEADER),
        )
        # the client has waited for its first token long enough
        asyncio.get_running_loop().call_soon(self._learn, outcome, _report(engine_headers))
        return _headers(self._attempt, self._prompt, outcome)

    def _learn(self, outcome: Outcome, report: LoadReport | None) -> None:
        try:
            self._router.placer.answered(self._attempt, outcome.replica_id, report)
            self._router.learn(self._attempt, self._request, self._prompt, outcome)
        except Exception:  # an explanation must not cost the answer
            logger.exception("request %s is not explained", self._request.request_id)

    def ended(self) -> None:
        self._router.placer.ended(self._attempt, self._served_by)


def policy_of(headers: Mapping[str, str]) -> str | None:
    """The policy a request asks for itself. Raises ApiError 400 for one that does not exist."""
    policy = headers.get(POLICY_HEADER)
    if policy is not None and policy not in POLICY_NAMES:
        message = (
            f"{POLICY_HEADER} is {policy[:100]!r}; it must be one of {', '.join(POLICY_NAMES)}"
        )
        raise ApiError(400, message, code="unknown_policy", param=POLICY_HEADER)
    return policy


def _report(headers: Mapping[str, str]) -> LoadReport | None:
    try:
        return LoadReport.from_header(headers.get(LOAD_HEADER, ""))
    except ValueError:  # from a replica of another release
        return None


def _count(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None


def _headers(attempt: Attempt, prompt: Prompt, outcome: Outcome) -> dict[str, str]:
    served = next((c for c in attempt.placement.ranked if c.replica_id == outcome.replica_id), None)
    headers = {
        POLICY_HEADER: attempt.placement.policy,
        "x-antefix-ttft-ms": f"{outcome.ttft * 1000:.1f}",
        "x-antefix-index-ms": f"{prompt.lookup_s * 1000:.2f}",
    }
    if served is not None:
        headers["x-antefix-predicted-ttft-ms"] = f"{served.predicted_ttft * 1000:.1f}"
        headers["x-antefix-cached-tokens-predicted"] = str(served.cached_tokens)
    if outcome.cached_tokens is not None:
        headers[CACHED_TOKENS_HEADER] = str(outcome.cached_tokens)
    if outcome.prompt_tokens is not None:
        headers[PROMPT_TOKENS_HEADER] = str(outcome.prompt_tokens)
    return headers


def _explanation(
    pool: str,
    attempt: Attempt,
    request: EngineRequest,
    prompt: Prompt,
    outcome: Outcome,
    served: Candidate | None,
    loss: Mapping[str, int],
) -> dict[str, Any]:
    placement = attempt.placement
    return {
        "request_id": request.request_id,
        "at": time.time(),
        "pool": pool,
        "model": request.model,
        "path": request.path,
        "policy": placement.policy,
        "index_answered": prompt.held is not None,
        "prompt_known": prompt.known,
        "segments": len(prompt.request.keys),
        "popularity": round(placement.popularity, 2),
        "replica": outcome.replica_id,
        "prompt_tokens": {
            "counted": prompt.request.prompt_tokens,
            "confirmed": outcome.prompt_tokens,
        },
        "cached_tokens": {
            "predicted": served.cached_tokens if served else None,
            "in_index": served.confirmed_tokens if served else None,
            "confirmed": outcome.cached_tokens,
        },
        "ttft_s": {
            "predicted": served.predicted_ttft if served else None,
            "observed": outcome.ttft,
        },
        "reuse_loss_tokens": dict(loss),
        "read_s": prompt.read_s,
        "lookup_s": prompt.lookup_s,
        "shadow": asdict(placement.shadow) if placement.shadow else None,
        "candidates": [candidate.as_dict() for candidate in placement.ranked],
    }
