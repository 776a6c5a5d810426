"""What was wanted of the fleet, and whether it came. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from benchmarks.scale.choosers import ORACLE
from benchmarks.scale.costs import Growth
from benchmarks.scale.published import LEAST_S, STAGES, WORKLOAD
from benchmarks.scale.redis_cluster import ClusterFound
from benchmarks.scale.redis_load import RedisLoad
from benchmarks.scale.results import FleetSummary
from benchmarks.scale.simulate import CONVERSATIONS, OURS
from benchmarks.stand import report
from loadgen.workloads import WORKLOADS

HITS, VARIATION = 0.99, 0.04
# What a peer published: one before a mean of 64 s without its router and 2.6 s with it.
MEAN_TIMES, P99_TIMES = 25.0, 19.0
PEER_MEAN_S = 63.7
# Half of its requests share a prefix that any one replica could have for all of them.
HOT, MOST_REQUESTS = "hot_prefix", 1.25
# A cost grows as its axis to this power at most: a decision no faster than a square root, and what
# an axis has no part in not at all. What writes or reads each of n things is linear, which is no
# goal: an event by its prompt, a board by replicas and by gateways, a replica written anew.
POWERS = {
    **{f"decision_by_{axis}": 0.5 for axis in ("prompt_tokens", "replicas", "gateways")},
    **{f"{cost}_by_blocks": 0.1 for cost in ("decision", "event")},
    "event_by_replicas": 0.1,
}
PEER_TRACE = "toolagent_trace"
STAND_IN = "mooncake_conversation"


def goals(
    found: Sequence[FleetSummary],
    redis: RedisLoad,
    cluster: ClusterFound,
    growths: Sequence[Growth],
) -> dict[str, Any]:
    judged = {**dict(_of_conversations(found)), **dict(_of_chats(found))}
    for trace in (PEER_TRACE, STAND_IN):
        if pair := saturated(found, trace):
            random, ours = pair
            mean = random.ttft_mean_s / ours.ttft_mean_s
            p99 = random.ttft_p99_s / ours.ttft_p99_s
            judged[f"{trace}_mean_ttft_of_random"] = report.goal(mean, at_least=MEAN_TIMES)
            judged[f"{trace}_p99_ttft_of_random"] = report.goal(p99, at_least=P99_TIMES)
    for rate, stage in STAGES.items():
        name = f"{WORKLOAD}_at_{rate:g}"
        of = {s.case.policy: s for s in found if (s.case.workload, s.case.rate) == (WORKLOAD, rate)}
        if of and stage.is_saturated:
            mean, p90 = times(of["random"], of[OURS])
            judged[f"{name}_mean_ttft_of_random"] = report.goal(mean, at_least=MEAN_TIMES)
            judged[f"{name}_p90_ttft_of_random"] = report.goal(p90, at_least=P99_TIMES)
    judged["redis_head_room_at_1000_replicas"] = report.goal(redis.head_room, at_least=1.0)
    judged["wrong_lookups_on_a_cluster"] = report.goal(cluster.wrong, at_most=0)
    for growth in growths:
        if (power := POWERS.get(growth.name)) is not None:
            judged[f"{growth.name}_power"] = report.goal(growth.exponent, at_most=power)
    return judged


def saturated(
    found: Sequence[FleetSummary], trace: str
) -> tuple[FleetSummary, FleetSummary] | None:
    """Random and ours at that load of the trace at which random's mean comes nearest to what the
    peer's requests had without its router."""
    by_rate = {
        (s.case.rate, s.case.policy): s
        for s in found
        if s.case.workload == trace and s.case.gateways == 1
    }
    rates = [rate for rate, policy in by_rate if policy == "random" and (rate, OURS) in by_rate]
    if not rates:
        return None
    rate = min(rates, key=lambda rate: abs(by_rate[rate, "random"].ttft_mean_s - PEER_MEAN_S))
    return by_rate[rate, "random"], by_rate[rate, OURS]


def times(random: FleetSummary, ours: FleetSummary) -> tuple[float, float]:
    """How many times sooner first tokens came on the published load, mean and p90, where both have
    what they took there at least."""
    mean = (random.ttft_mean_s + LEAST_S) / (ours.ttft_mean_s + LEAST_S)
    return mean, (random.ttft_p90_s + LEAST_S) / (ours.ttft_p90_s + LEAST_S)


def _of_chats(found: Sequence[FleetSummary]) -> Iterator[tuple[str, Any]]:
    """Ours by the best other, but for the oracle, which knows what no router can."""
    for workload in WORKLOADS:
        of = {s.case.policy: s for s in found if s.case.workload == workload}
        others = [s for policy, s in of.items() if policy not in (OURS, ORACLE)]
        if not others:
            continue
        for name, seconds in (("mean", _mean), ("p99", _p99)):
            ours = seconds(of[OURS]) / min(map(seconds, others))
            yield f"{workload}_{name}_ttft_by_best_other", report.goal(ours, at_most=1.0)
        if workload == HOT:
            most = report.goal(of[OURS].most_requests, at_most=MOST_REQUESTS)
            yield f"{workload}_most_requests_over_mean", most


def _mean(of: FleetSummary) -> float:
    return of.ttft_mean_s


def _p99(of: FleetSummary) -> float:
    return of.ttft_p99_s


def _of_conversations(found: Sequence[FleetSummary]) -> Iterator[tuple[str, Any]]:
    ours = [s for s in found if s.case.policy == OURS and s.case.workload == CONVERSATIONS]

    def place(s: FleetSummary) -> tuple[int, int]:
        return s.case.replicas, s.case.gateways

    for (replicas, gateways), same in groupby(sorted(ours, key=place), place):
        one = next(same)
        name = f"{replicas}_replicas_{gateways}_gateway{'s' if gateways > 1 else ''}"
        yield f"hits_of_ceiling_{name}", report.goal(one.of_ceiling, at_least=HITS)
        yield f"variation_{name}", report.goal(one.variation_requests, at_most=VARIATION)
