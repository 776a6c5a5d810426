"""Counts the results of one pool's requests, and explains each placement.

Predictions are compared with the values that the engine confirms. `explanations` completes and
stores the explanation of a request when it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from autoscaling.slo import PriorityClass, Slo
from common.verdicts import VerdictKind
from deployments.gateway.intake.request import EngineRequest, PoolRequest, Prompt
from observability.metrics.metrics import (
    OfferingSource,
    RoutingMetrics,
    Served,
    ShadowChoice,
    TierUse,
    TierWay,
    TokenSource,
)
from observability.traces.request_record import Explained
from router.board.load import LoadBoard
from router.choice.loss import NotReused, split
from router.choice.placement import BLIND, Placement, ShadowDecision, reusable_tokens
from router.choice.policies import Candidate

# The number of candidates in an explanation: the best ones, and the one that served.
CANDIDATES = 8


@dataclass(frozen=True)
class Prefilled:
    """How the prefill pool computed a prompt. `address`: where it can be pulled; empty: it cannot,
    `failure` is why. `took_s`: seconds."""

    replica_id: str
    address: str
    took_s: float
    failure: str


@dataclass(frozen=True)
class Outcome:
    """The result of a request, with tokens as the engine counts them.

    `ttft_s`: the time to first token since the request's arrival. `engine_s`: its part since the
    placement, which is what the scheduler predicts. `prefilled` None: the prefill pool did not get
    the prompt.
    """

    replica_id: str
    ttft_s: float
    engine_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    prefilled: Prefilled | None = None


@dataclass(frozen=True)
class Admitted:
    """The decision about a request, `waited_s` seconds after its arrival.

    `outage`: the decision was forced by a pool without replicas. The fields are the `admission` of
    an explanation.
    """

    priority: PriorityClass
    verdict: VerdictKind
    reason: str
    waited_s: float
    outage: bool = False


@dataclass(frozen=True)
class PlacementDecision:
    """The decision to place a request, which is explained only if its explanation is read before
    its first token. `model`: the name at its engine."""

    reporter: PoolReporter
    model: str
    prompt: Prompt
    placement: Placement
    admitted: Admitted

    def explained(self) -> Mapping[str, Any]:
        return self.reporter.decided(self.model, self.prompt, self.placement, self.admitted)


class PoolReporter:
    """The reporter of one pool. `pool`: its name. `slos`: its current objectives."""

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
        # promoted replicas -> arrival of the request that needed them, until their first answer
        self._promoted: dict[str, float] = {}

    def promoted(self, replica_id: str, since: float) -> None:
        """Record a promotion. `since`: the arrival of the request that needs the replica."""
        self._promoted[replica_id] = since
        # forget replicas that were lost before their first answer
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
        """Count a request at its first token, and return its explanation."""
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
        self._count_choices(placement, served, outcome)
        explanation = self.decided(request.model, prompt, placement, admitted)
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
            "way": _way(served) if served else None,
            "alternative": _alternative(placement, served, outcome.engine_s) if served else None,
            "prefilled": _prefilled(served, outcome.prefilled) if served else None,
            "shadow": _shadow(placement.shadow) if placement.shadow else None,
        }
        if served is not None and served not in explanation["candidates"]:
            explanation["candidates"] = (*explanation["candidates"][:-1], served)
        explanation["prompt_tokens"]["confirmed"] = outcome.prompt_tokens
        return explanation

    def _count_choices(
        self, placement: Placement, served: Candidate | None, outcome: Outcome
    ) -> None:
        """Count what was chosen for a request: the way to its cached tokens, and the shadow
        policy's choice."""
        if served is not None and outcome.prefilled is not None and not outcome.prefilled.address:
            # its engine computed the prompt
            served = msgspec.structs.replace(
                served,
                cached_tokens=served.cached_tokens - served.prefill_tokens,
                prefill_load_s=0.0,
                way_ttfts_s={"compute": 0.0},
            )
        if served is not None and (way := _way(served)) is not None:
            tokens = _tokens_by_source(served, placement.prompt_tokens)
            predicted_s = served.predicted_ttft_s
            use = TierUse(way, tokens, predicted_s, outcome.engine_s, _taken(served))
            self._metrics.tiered(use)
        if shadow := placement.shadow:
            agrees = shadow.replica_id == outcome.replica_id
            self._metrics.shadow(ShadowChoice(shadow.policy, agrees, shadow.regret_s))

    def rejected(self, request: PoolRequest, why: str, waited_s: float) -> None:
        """Explain a request that is rejected before its placement."""
        request.engine.record.admitted("rejected")
        admitted = Admitted(request.options.priority, "rejected", why, waited_s)
        self.unplaced(request, Placement(()), admitted)

    def unplaced(self, request: PoolRequest, placement: Placement, admitted: Admitted) -> None:
        """Explain a request that waits or is rejected, in its record from now on.

        The record keeps only the candidates of `placement` that the explanation shows.
        """
        engine = request.engine
        explanation = self.decided(engine.model, request.prompt, placement, admitted)
        engine.record.decided(Explained(explanation))

    def decided(
        self, model: str, prompt: Prompt, placement: Placement, admitted: Admitted
    ) -> dict[str, Any]:
        """Return the decision about a request, and the facts it is based on."""
        slo = self.slos.get(admitted.priority)
        return {
            "pool": self.pool,
            "model": model,
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


def _way(candidate: Candidate) -> TierWay | None:
    """Return how a replica gets the tokens of the prompt that it need not compute; None: there are
    none."""
    return candidate.way or ("cache" if candidate.cached_tokens else None)


def _taken(served: Candidate) -> Mapping[OfferingSource, bool]:
    """Return the sources of tokens outside the cache, and whether they were used."""
    host, disk, pulled = served.loaded_tokens
    offered: list[tuple[OfferingSource, int, int]] = [
        ("host", served.host_tokens, host),
        ("disk", served.disk_tokens, disk),
        ("peer", served.peer_tokens, pulled if served.pulls else 0),
        ("prefill", served.prefill_tokens, pulled if served.prefills_elsewhere else 0),
    ]
    return {source: used > 0 for source, tokens, used in offered if tokens}


def _tokens_by_source(served: Candidate, prompt_tokens: int) -> Mapping[TokenSource, int]:
    """Return the tokens of the prompt by where the replica gets them, as predicted."""
    host, disk, pulled = served.loaded_tokens
    return {
        "cache": served.cached_tokens - host - disk - pulled,
        "host": host,
        "disk": disk,
        "peer": pulled if served.pulls else 0,
        "prefill": pulled if served.prefills_elsewhere else 0,
        "computed": max(0, prompt_tokens - served.cached_tokens),
    }


def _alternative(
    placement: Placement, served: Candidate, measured_s: float
) -> dict[str, Any] | None:
    """Return the fastest of the other predictions: another replica, or the next best way to the
    tokens in the tiers of the one that `served`. None: there was no other.

    `regret` is how much later the first token came than that, in seconds; below 0 the choice was
    better.
    """
    others = [(c.predicted_ttft_s, c.replica_id) for c in placement.ranked if c is not served]
    if served.other_way_ttft_s > 0.0:
        others.append((served.other_way_ttft_s, served.replica_id))
    if not others or placement.policy == BLIND:
        return None
    predicted_s, replica_id = min(others)
    regret_s = measured_s - predicted_s
    return {"replica_id": replica_id, "predicted_ttft": predicted_s, "regret": regret_s}


def _prefilled(served: Candidate, prefilled: Prefilled | None) -> dict[str, Any] | None:
    """Return how the prefill pool computed the prompt. Times are in seconds."""
    if prefilled is None:
        return None
    return {
        "replica_id": prefilled.replica_id or None,
        "predicted": served.ready_s,
        "measured": prefilled.took_s,
        "failure": prefilled.failure or None,
    }


def _shadow(shadow: ShadowDecision) -> dict[str, Any]:
    """Return a shadow policy's decision for an explanation; times are in seconds."""
    return {
        "policy": shadow.policy,
        "replica_id": shadow.replica_id,
        "cached_tokens": shadow.cached_tokens,
        "predicted_ttft": shadow.predicted_ttft_s,
        "regret": shadow.regret_s,
    }
