"""Counts what became of one pool's requests, and explains why each went where it went.

What was predicted is compared with what the engine confirms. The explanation of a request is
completed and kept when it has ended (`explanations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autoscaling.slo import PriorityClass, Slo
from deployments.gateway.intake.request import EngineRequest, PoolRequest, Prompt
from deployments.gateway.record.explanation import route_of
from observability.metrics import RoutingMetrics, Served, ShadowChoice
from router.load import LoadBoard
from router.loss import NotReused, split
from router.placement import Placement, ShadowDecision, reusable_tokens

# How many an explanation shows: the best, and the one that served.
CANDIDATES = 8

AdmissionVerdict = Literal["admitted", "overflowed", "queued", "refused"]


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
    """What was decided about a request, `waited_s` seconds after it arrived. `outage`: because the
    pool of its model had no replica. Its fields are an explanation's `admission`."""

    priority: PriorityClass
    verdict: AdmissionVerdict
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
        metrics: RoutingMetrics,
    ) -> None:
        self.pool = pool
        self.slos = slos
        self._board = board
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
        """One request got its first token: compare, count and return its explanation."""
        if (since := self._promoted.pop(outcome.replica_id, None)) is not None:
            self._metrics.promotion(request.arrived + outcome.ttft_s - since)
        served = placement.candidate(outcome.replica_id)
        not_reused = NotReused()
        if served is not None and outcome.prompt_tokens is not None:
            not_reused = split(
                reusable=reusable_tokens(outcome.prompt_tokens, self._board.segment_tokens),
                best_cached=placement.best_cached_tokens,
                chosen_cached=served.confirmed_tokens,
                confirmed=outcome.cached_tokens or 0,
                signal=placement.signal and bool(prompt.placement.keys),
                all_synced=all(c.synced for c in placement.ranked),
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
                    new=not_reused.new,
                    loss=not_reused.losses,
                )
            )
        if shadow := placement.shadow:
            agrees = shadow.replica_id == outcome.replica_id
            self._metrics.shadow(ShadowChoice(shadow.policy, agrees, shadow.regret_s))
        explanation = self.decided(request, prompt, placement, admitted)
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
            "new_tokens": not_reused.new,
            "reuse_loss_tokens": not_reused.losses,
            "shadow": _shadow(placement.shadow) if placement.shadow else None,
        }
        if served is not None and served not in explanation["candidates"]:
            explanation["candidates"] = (*explanation["candidates"][:-1], served)
        explanation["prompt_tokens"]["confirmed"] = outcome.prompt_tokens
        return explanation

    def resumed(self, request: PoolRequest, events: int) -> Mapping[str, Any]:
        """Explain the rest of another gateway's stream, of which the client has `events`."""
        engine, record = request.engine, request.engine.record
        reason = "it goes on with a stream whose gateway was lost"
        admitted = Admitted(request.options.priority, "admitted", reason, 0.0)
        explanation = self.decided(engine, request.prompt, Placement(()), admitted)
        explanation |= {"replica": record.replica_id, "rejoined": {"events": events}}
        explanation["prompt_tokens"]["confirmed"] = record.prompt_tokens
        return explanation

    def refused(self, request: PoolRequest, why: str, waited_s: float) -> None:
        """A request is refused before it is placed."""
        admitted = Admitted(request.options.priority, "refused", why, waited_s)
        self.unplaced(request, Placement(()), admitted)

    def unplaced(self, request: PoolRequest, placement: Placement, admitted: Admitted) -> None:
        """A request waits or is refused: its record explains why from now on.

        Nothing of `placement` is retained except the candidates that the explanation shows.
        """
        explanation = self.decided(request.engine, request.prompt, placement, admitted)
        request.engine.record.explain = lambda: explanation

    def decided(
        self,
        request: EngineRequest,
        prompt: Prompt,
        placement: Placement,
        admitted: Admitted,
    ) -> dict[str, Any]:
        """What was decided about a request, and on which facts."""
        slo = self.slos.get(admitted.priority)
        return {
            "pool": self.pool,
            "model": request.model,
            "route": route_of(request.record),
            "policy": placement.policy,
            "admission": {**vars(admitted)},
            "slo_ttft_s": slo.ttft_s if slo else None,
            "slo_tpot_s": slo.tpot_s if slo else None,
            "slo_e2e_s": slo.e2e_s if slo else None,
            "index_answered": prompt.depths is not None,
            "prompt_known": prompt.known,
            "segments": len(prompt.placement.keys),
            "popularity": round(placement.popularity, 2),
            "prompt_tokens": {"counted": prompt.placement.prompt_tokens, "confirmed": None},
            "read_s": prompt.read_s,
            "lookup_s": prompt.lookup_s,
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
