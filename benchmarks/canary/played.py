"""A canary behind several gateways, in virtual time. The judgment is the product's.

Requests arrive at random, and each at a random gateway. Facts of a request are known when it ends.
Each gateway learns once in PERIOD_S what the others know, at another moment than they do. Times of
the base and of the canary vary together with the load.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from deployments.fleet.settings.model_names import CanarySettings, ModelRoute
from deployments.gateway.models.canaries import PERIOD_S, Canary, canary_of
from deployments.gateway.models.canary_state import CanaryState, first, next_state
from deployments.gateway.models.canary_test import LogWealths, worse_in
from observability.traces.request_record import AnswerEnd, RequestFacts, RequestRecord

# What a gateway has reported to the others: `Canary.log_wealths`, and its canary's requests.
Told = tuple[LogWealths, int]

MODEL, BASE, CANARY = "model", "base", "canary"
OUTPUT_TOKENS = 40
# Medians in seconds, and the deviations of their logarithms.
TTFT, TPOT = (0.35, 1.0), (0.02, 0.3)
FAILED = 0.002
# The base's share of answers that `max_tokens` ends.
CUT = 0.2


@dataclass(frozen=True)
class CanaryTraffic:
    """`rate`: requests a second of all gateways. `wave`, `wave_s`: times rise and fall by exp(wave)
    in this period. `settings`: of the canary."""

    gateways: int
    rate: float
    wave: float
    wave_s: float
    settings: CanarySettings


@dataclass(frozen=True)
class CanaryFault:
    """Faults of a canary, from `after_s` after its begin on: its time per token is multiplied, a
    share of its requests fails, and a share of its answers is cut by `max_tokens`."""

    tpot: float = 1.0
    failed: float = FAILED
    after_s: float = 0.0
    cut: float = CUT


@dataclass(frozen=True)
class Ended:
    """`status`: of the canary. `requests`: that it got with its fault until all gateways knew;
    `seconds`: from the first of these until then. `why`: as an operator reads it."""

    status: str
    requests: int
    seconds: float
    why: str


def play(
    of: CanaryTraffic, fault: CanaryFault, seed: int, warm_up_s: float, most_requests: int
) -> Ended:
    """Until the canary has ended, or has got `most_requests`."""
    rng, reasons = random.Random(seed), random.Random(f"reasons {seed}")
    route = ModelRoute(pools={BASE: 1.0}, canary=of.settings)
    canaries = [canary for _ in range(of.gateways) if (canary := canary_of(MODEL, route))]
    looks = [(rng.random() * PERIOD_S, number) for number in range(of.gateways)]
    heapq.heapify(looks)
    ends: list[tuple[float, int, int, RequestRecord, AnswerEnd]] = []
    told: dict[int, Told] = {}
    state, now, sent, number, began = None, 0.0, 0, 0, math.inf
    while sent < most_requests:
        now += rng.expovariate(of.rate)
        number += 1
        while ends and ends[0][0] <= now:
            at, _, gateway, record, end = heapq.heappop(ends)
            canaries[gateway].ended(record, end, at)
            if record.facts.routed_to == CANARY and canaries[gateway].is_worse(at):
                looks = [(at if who == gateway else when, who) for when, who in looks]
                heapq.heapify(looks)
        if state is None and now >= warm_up_s:
            state = first(canaries[0].plan, None, now)
        while looks[0][0] <= now:
            at, gateway = heapq.heappop(looks)
            heapq.heappush(looks, (at + PERIOD_S, gateway))
            if state is not None:
                of_gateway = canaries[gateway]
                log_wealths = {name: dict(of) for name, of in of_gateway.log_wealths.items()}
                told[gateway] = log_wealths, of_gateway.requests
                state = _judged(told.values(), of_gateway, state, at) or state
                of_gateway.state = state
        is_ended = state is not None and state.status != "running"
        if state is not None and is_ended and all(one.state == state for one in canaries):
            return Ended(state.status, sent, now - began - fault.after_s, state.why)
        gateway = rng.randrange(of.gateways)
        is_canary = rng.random() < canaries[gateway].share
        began = min(began, now) if is_canary else began
        is_faulty = is_canary and now >= began + fault.after_s
        sent += is_faulty
        served_with = fault if is_faulty else CanaryFault()
        record, end = _served(of, served_with, rng, now, to=CANARY if is_canary else BASE)
        is_cut = reasons.random() < served_with.cut
        if end.outcome == "ok":
            end = replace(end, finish_reason="length" if is_cut else "stop")
        heapq.heappush(ends, (now + end.duration_s, number, gateway, record, end))
    return Ended("running", sent, now - began - fault.after_s, "")


def _judged(
    told: Collection[Told], canary: Canary, state: CanaryState, now: float
) -> CanaryState | None:
    """As `Canaries` does with what it reads of Redis."""
    epoch = canary.epoch(now)
    worse = worse_in((log_wealths for log_wealths, _ in told), canary.rule, epoch)
    return next_state(state, canary.plan, worse, sum(requests for _, requests in told), now)


def _served(
    of: CanaryTraffic, fault: CanaryFault, rng: random.Random, now: float, *, to: str
) -> tuple[RequestRecord, AnswerEnd]:
    load = math.exp(of.wave * math.sin(2 * math.pi * now / of.wave_s))
    facts = RequestFacts("", "", "/v1/chat/completions", model=MODEL, routed_to=to)
    record = RequestRecord(facts, now)
    if rng.random() < fault.failed:
        return record, AnswerEnd(0.0, "failed", 503)
    median, deviation = TTFT
    record.ttft_s = load * median * rng.lognormvariate(0, deviation)
    median, deviation = TPOT
    tpot_s = load * fault.tpot * median * rng.lognormvariate(0, deviation)
    duration_s = record.ttft_s + tpot_s * (OUTPUT_TOKENS - 1)
    return record, AnswerEnd(duration_s, "ok", 200, output_tokens=OUTPUT_TOKENS)
