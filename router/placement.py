"""One decision: where a request should go, and why. A function of data: no I/O, no clock."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from router.cost import predict_ttft
from router.load import ReplicaLoad


@dataclass(frozen=True)
class Candidate:
    replica_id: str
    url: str
    predicted_ttft: float


@dataclass(frozen=True)
class Placement:
    """Candidates, best first. Empty when nothing is known: any live replica will do."""

    ranked: tuple[Candidate, ...]

    @property
    def replica_ids(self) -> tuple[str, ...]:
        return tuple(candidate.replica_id for candidate in self.ranked)


def place(loads: Mapping[str, ReplicaLoad], prompt_tokens: int, rng: random.Random) -> Placement:
    """Rank the replicas by predicted TTFT (seconds), then by requests on them, ties at random."""
    scored = [
        (predict_ttft(load, prompt_tokens), load.waiting + load.running, rng.random(), load)
        for load in loads.values()
    ]
    scored.sort(key=lambda score: score[:3])
    return Placement(tuple(Candidate(load.replica_id, load.url, ttft) for ttft, *_, load in scored))
