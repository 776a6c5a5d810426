"""Tells what became of one pool's requests: metrics, and why each went where it went.

What was predicted is compared with what the engine confirms; an explanation is kept for a while
under GET /antefix/requests/{id}, of refused requests too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autoscaling.slo import PriorityClass, Slo
from deployments.gateway.explanations import Explanations
from deployments.gateway.request import EngineRequest, PoolRequest, Prompt
from observability.metrics import RoutingMetrics, Served, ShadowChoice
from router.load import LoadBoard
from router.loss import split
from router.placement import Placement, ShadowDecision, reusable_tokens

# How many an explanation shows: the best, and the one that served.
CANDIDATES = 8


@dataclass(frozen=True)
class Outcome:
    """What came of a request: by whom, tokens as the engine counts them. `ttft_s` since it had
    arrived, `engine_s` of it since it was placed: what is predicted."""

    replica_id: str
    ttft_s: float
    engine_s: float
    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True)
class Admitted:
    """How a request was decided: `waited_s` seconds after it came; `outage`: because the pool that
    it came for had no replica. Its fields are an explanation's `admission`."""

    priority: PriorityClass
    verdict: Literal["admitted", "overflowed", "refused"]
    reason: str
    waited_s: float
    outage: bool = False


class PoolReporter:
    """`pool` is its name; `slos` are what it promises now."""

    def __init__(
        self,
        pool: str,
        slos: Mapping[PriorityClass, Slo],
        board: LoadBoard,
        explanations: Explanations,
        metrics: RoutingMetrics,
    ) -> None:
        self.pool = pool
        self.slos = slos
        self._board = board
        self._explanations = explanations
        self._metrics = metrics
        # warm replicas that were given traffic -> when the request came that needed them
        self._promoted: dict[str, float] = {}

    def promoted(self, replica_id: str, since: float) -> None:
        """A warm replica takes traffic; `since` is when the request came that needs it."""
        self._promoted[replica_id] = since
        # one that died before it served is not waited for
        there = self._board.loads().keys() | {replica_id}
        self._promoted = {name: at for name, at in self._promoted.items() if name in there}
        self._metrics.promoted()

    def answered(
        self,
        request: EngineRequest,
        prompt: Prompt,
        placement: Placement,
        admitted: Admitted,
        outcome: Outcome,
    ) -> Mapping[str, Any]:
        """One request got its first token: compare, count and keep the explanation, returned."""
        if (since := self._promoted.pop(outcome.replica_id, None)) is not None:
            self._metrics.promotion(request.arrived + outcome.ttft_s - since)
        served = placement.candidate(outcome.replica_id)
        loss: dict[str, int] = {}
        if served is not None and outcome.prompt_tokens is not None:
            loss = vars(
                split(
                    reusable=reusable_tokens(outcome.prompt_tokens, self._board.segment_tokens),
                    best_cached=placement.best_cached_tokens,
                    chosen_cached=served.confirmed_tokens,
                    confirmed=outcome.cached_tokens or 0,
                    signal=placement.signal and bool(prompt.placement.keys),
                    all_synced=all(c.synced for c in placement.ranked),
                )
            )
        if outcome.prompt_tokens is not None:
            self._metrics.served(
                Served(
                    policy=placement.policy,
                    signal=placement.signal,
                    predicted_ttft_s=served.predicted_ttft_s if served else None,
                    prompt_tokens=outcome.prompt_tokens,
                    cached_predicted=served.cached_tokens if served else 0,
                    cached_confirmed=outcome.cached_tokens,
                    loss=loss,
                )
            )
        if shadow := placement.shadow:
            agrees = shadow.replica_id == outcome.replica_id
            self._metrics.shadow(ShadowChoice(shadow.policy, agrees, shadow.regret_s))
        explanation = self._explanation(request, prompt, placement, admitted)
        explanation |= {
            "replica": outcome.replica_id,
            "cached_tokens": {
                "predicted": served.cached_tokens if served else None,
                "in_index": served.confirmed_tokens if served else None,
                "confirmed": outcome.cached_tokens,
            },
            "ttft_s": {
                "predicted": served.predicted_ttft_s if served else None,
                "engine": outcome.engine_s,
                "observed": outcome.ttft_s,
            },
            "reuse_loss_tokens": loss,
            "shadow": _shadow(placement.shadow) if placement.shadow else None,
        }
        if served is not None and served not in explanation["candidates"]:
            explanation["candidates"] = (*explanation["candidates"][:-1], served)
        explanation["prompt_tokens"]["confirmed"] = outcome.prompt_tokens
        self._explanations.keep(request.tenant, request.request_id, explanation)
        return explanation

    def went_on(self, request: EngineRequest, explanation: Mapping[str, Any]) -> Mapping[str, Any]:
        """An answer goes on elsewhere: `explanation`, of its beginning, says it; returned."""
        self._explanations.keep(request.tenant, request.request_id, explanation)
        return explanation

    def rejoined(self, request: PoolRequest, events: int) -> None:
        """The rest of a stream of another gateway, of which the client has so many events."""
        engine, record = request.engine, request.engine.record
        reason = "it goes on with a stream whose gateway was lost"
        admitted = Admitted(request.options.priority, "admitted", reason, 0.0)
        explanation = self._explanation(engine, request.prompt, Placement(()), admitted)
        explanation |= {"replica": record.replica_id, "rejoined": {"events": events}}
        explanation["prompt_tokens"]["confirmed"] = record.prompt_tokens
        self._explanations.keep(engine.tenant, engine.request_id, explanation)

    def refused(self, request: PoolRequest, placement: Placement, admitted: Admitted) -> None:
        """A request was not let in: keep the explanation of that."""
        explanation = self._explanation(request.engine, request.prompt, placement, admitted)
        self._explanations.keep(request.engine.tenant, request.engine.request_id, explanation)

    def _explanation(
        self,
        request: EngineRequest,
        prompt: Prompt,
        placement: Placement,
        admitted: Admitted,
    ) -> dict[str, Any]:
        slo = self.slos.get(admitted.priority)
        return {
            "request_id": request.request_id,
            "tenant": request.tenant,
            "at": time.time(),
            "pool": self.pool,
            "model": request.model,
            "path": request.path,
            "policy": placement.policy,
            "admission": {**vars(admitted)},
            "slo_ttft_s": slo.ttft_s if slo else None,
            "budget": request.record.charge,
            "index_answered": prompt.depths is not None,
            "prompt_known": prompt.known,
            "segments": len(prompt.placement.keys),
            "popularity": round(placement.popularity, 2),
            "prompt_tokens": {"counted": prompt.placement.prompt_tokens, "confirmed": None},
            "read_s": prompt.read_s,
            "lookup_s": prompt.lookup_s,
            "phases": {**vars(request.record.phases)},
            "candidates": placement.ranked[:CANDIDATES],
            "candidates_not_shown": max(0, len(placement.ranked) - CANDIDATES),
        }


def _shadow(shadow: ShadowDecision) -> dict[str, Any]:
    """As explanations have it; times in seconds."""
    return {
        "policy": shadow.policy,
        "replica_id": shadow.replica_id,
        "cached_tokens": shadow.cached_tokens,
        "predicted_ttft": shadow.predicted_ttft_s,
        "regret": shadow.regret_s,
    }
