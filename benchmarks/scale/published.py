"""A load that a peer published with its results: llm-d's shared prefixes on eight pods.

Source: llm-d-kv-cache, benchmarking/73-capacity/README.md: inference-perf's `shared_prefix` data,
Qwen3 32B, two H100 a pod, 307,328 tokens of KV each, of which the prompts fill 73 %. Each stage has
a warm-up here; there, stages followed each other on the same pods. Stages of 35 and more requests a
second are left out: answers fill the caches, so vLLM preempts, where a simulated engine queues.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType

from simulator import engine_profile
from simulator.traces import Request, Trace

WORKLOAD = "llm_d_shared_prefixes"
PROFILE = engine_profile.SHIPPED.with_name("qwen-32b-2h100.json")
PODS = 8
GROUPS, USERS = 150, 5
SYSTEM_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 6000, 1200, 1000
BLOCK_TOKENS = 128
WARM_UP_RATE, WARM_UP_S = 15.0, 50.0
# All requests of the warm-up have ended when a stage begins.
SETTLE_S = 120.0


@dataclass(frozen=True)
class Stage:
    """`seconds` of requests at one rate, and the mean TTFT in seconds that the peer published for
    random placement."""

    seconds: float
    random_mean_s: float

    @property
    def is_saturated(self) -> bool:
        """At random, requests come faster than they are answered."""
        return self.random_mean_s > 10.0


STAGES: Mapping[float, Stage] = MappingProxyType(
    {10.0: Stage(20, 0.826), 20.0: Stage(38, 25.073), 30.0: Stage(25, 32.212)}
)
# The peer's TTFT at 3 requests a second with KV events: no queue, but the network and the part of a
# cached prompt that is computed.
LEAST_S = 0.291


def shared_prefixes(seed: int, rate: float) -> Trace:
    """The warm-up, and the stage with this rate. Prompts take turns in a random order."""
    rng = random.Random(f"{WORKLOAD}/{seed}")
    prompts = [(group, user) for group in range(GROUPS) for user in range(USERS)]
    rng.shuffle(prompts)
    times = _poisson(rng, 0.0, WARM_UP_RATE, WARM_UP_S)
    begins = WARM_UP_S + SETTLE_S
    times += _poisson(rng, begins, rate, STAGES[rate].seconds)
    requests = [
        Request(
            at,
            SYSTEM_TOKENS + QUESTION_TOKENS,
            ANSWER_TOKENS,
            _blocks(*prompts[number % len(prompts)]),
        )
        for number, at in enumerate(times)
    ]
    return Trace(WORKLOAD, tuple(requests), begins + STAGES[rate].seconds, BLOCK_TOKENS)


def warm_up(rate: float) -> float:
    """The share of the requests that comes before the stage with this rate."""
    before = WARM_UP_RATE * WARM_UP_S
    return before / (before + rate * STAGES[rate].seconds)


def _poisson(rng: random.Random, begins: float, rate: float, seconds: float) -> list[float]:
    """The average number of arrivals in `seconds`, at random times, in order."""
    return sorted(begins + rng.random() * seconds for _ in range(round(rate * seconds)))


def _blocks(group: int, user: int) -> tuple[int, ...]:
    shared, whole = (t // BLOCK_TOKENS for t in (SYSTEM_TOKENS, SYSTEM_TOKENS + QUESTION_TOKENS))
    names = [f"{group}/{i}" if i < shared else f"{group}/{user}/{i}" for i in range(whole)]
    return tuple(
        int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") for name in names
    )
