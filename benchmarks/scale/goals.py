"""The goals of a simulated fleet, and which are met. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness.results import report
from benchmarks.scale.choosers import ORACLE
from benchmarks.scale.costs import Growths, power
from benchmarks.scale.published import LEAST_S, STAGES, WORKLOAD
from benchmarks.scale.redis_load import Busy, head_room
from benchmarks.scale.results import FleetSummary
from benchmarks.scale.simulate import CONVERSATIONS, OURS
from loadgen.workloads import WORKLOADS

HITS, VARIATION = 0.99, 0.04
# What a peer published: one before a mean of 64 s without its router and 2.6 s with it.
MEAN_TIMES, TAIL_TIMES = 25.0, 19.0
PEER_MEAN_S = 63.7
# Half of its requests share a prefix that any one replica could have for all of them.
HOT, MOST_REQUESTS = "hot_prefix", 1.25
# A cost grows as its axis to this power at most: a decision no faster than a square root, and what
# an axis has no part in not at all. An event is linear in its prompt, which is no goal.
POWERS = {
    **{f"decision_by_{axis}": 0.5 for axis in ("prompt_tokens", "replicas", "gateways")},
    **{f"{cost}_by_blocks": 0.1 for cost in ("decision", "event")},
    "event_by_replicas": 0.1,
}
RECORDED, NO_REUSE = "mooncake_conversation", "azure_conv_2023"


def goals(found: Sequence[FleetSummary], busy: Busy, growths: Growths) -> dict[str, Any]:
    return {
        **dict(_of_conversations(found)),
        **dict(_of_chats(found)),
        **dict(_of_random(found)),
        "redis_head_room_at_1000_replicas": report.goal(head_room(busy), at_least=1.0),
        **{
            f"{name}_power": report.goal(power(name, seconds), at_most=POWERS[name])
            for name, seconds in growths.items()
            if name in POWERS
        },
    }


def saturated(found: Sequence[FleetSummary]) -> tuple[FleetSummary, FleetSummary] | None:
    """Random and Antefix at one load of the recorded trace, None without that trace. At this load
    random's mean TTFT comes nearest to that of the peer's requests without its router."""
    by_rate = {(s.case.rate, s.case.policy): s for s in found if s.case.workload == RECORDED}
    rates = [rate for rate, policy in by_rate if policy == "random"]
    if not rates:
        return None
    rate = min(rates, key=lambda rate: abs(by_rate[rate, "random"].ttft_mean_s - PEER_MEAN_S))
    return by_rate[rate, "random"], by_rate[rate, OURS]


def times(of: Mapping[str, FleetSummary]) -> tuple[float, float]:
    """Random's TTFT on the published load, divided by Antefix's: mean and p90. Both include the
    least that a first token took there."""
    random, ours = of["random"], of[OURS]
    mean = (random.ttft_mean_s + LEAST_S) / (ours.ttft_mean_s + LEAST_S)
    return mean, (random.ttft_p90_s + LEAST_S) / (ours.ttft_p90_s + LEAST_S)


def at_stage(found: Sequence[FleetSummary], rate: float) -> dict[str, FleetSummary]:
    """By policy, on the published load at this rate."""
    return {s.case.policy: s for s in found if (s.case.workload, s.case.rate) == (WORKLOAD, rate)}


def _of_random(found: Sequence[FleetSummary]) -> Iterator[tuple[str, Any]]:
    """Random divided by Antefix, where requests come faster than random answers them."""
    if pair := saturated(found):
        random, ours = pair
        mean, p99 = random.ttft_mean_s / ours.ttft_mean_s, random.ttft_p99_s / ours.ttft_p99_s
        yield f"{RECORDED}_mean_ttft_of_random", report.goal(mean, at_least=MEAN_TIMES)
        yield f"{RECORDED}_p99_ttft_of_random", report.goal(p99, at_least=TAIL_TIMES)
    for rate, stage in STAGES.items():
        if stage.is_saturated and (of := at_stage(found, rate)):
            mean, p90 = times(of)
            name = f"{WORKLOAD}_at_{rate:g}"
            yield f"{name}_mean_ttft_of_random", report.goal(mean, at_least=MEAN_TIMES)
            yield f"{name}_p90_ttft_of_random", report.goal(p90, at_least=TAIL_TIMES)


def _of_chats(found: Sequence[FleetSummary]) -> Iterator[tuple[str, Any]]:
    """Antefix divided by the best other, the oracle excepted, which knows what no router can."""
    for workload in WORKLOADS:
        of = {s.case.policy: s for s in found if s.case.workload == workload}
        others = [s for policy, s in of.items() if policy not in (OURS, ORACLE)]
        if not others:
            continue
        mean = of[OURS].ttft_mean_s / min(s.ttft_mean_s for s in others)
        yield f"{workload}_mean_ttft_by_best_other", report.goal(mean, at_most=1.0)
        p99 = of[OURS].ttft_p99_s / min(s.ttft_p99_s for s in others)
        yield f"{workload}_p99_ttft_by_best_other", report.goal(p99, at_most=1.0)
        if workload == HOT:
            most = report.goal(of[OURS].most_requests, at_most=MOST_REQUESTS)
            yield f"{workload}_most_requests_over_mean", most


def _of_conversations(found: Sequence[FleetSummary]) -> Iterator[tuple[str, Any]]:
    ours = [s for s in found if s.case.policy == OURS and s.case.workload == CONVERSATIONS]
    for s in sorted(ours, key=lambda s: (s.case.replicas, s.case.gateways)):
        several = "s" if s.case.gateways > 1 else ""
        name = f"{s.case.replicas}_replicas_{s.case.gateways}_gateway{several}"
        yield f"hits_of_ceiling_{name}", report.goal(s.of_ceiling, at_least=HITS)
        yield f"variation_{name}", report.goal(s.variation_requests, at_most=VARIATION)
