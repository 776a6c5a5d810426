"""What a fleet does with more than it can serve: make bench-overload

One fleet of real engines. For each seed of goals.yaml its capacity is measured open loop: the rate
is raised step by step. The knee is the highest rate at which nearly all requests still meet the
SLO, as at all lower ones. Then the knee is offered, and three times the knee. Every answer must be
a success or a 429 that says when to retry. At least as many requests as at the knee must meet
the SLO. Admitted requests must get their first token in time. When the load ends, requests of the
same sizes must meet the SLO within seconds.

Results say how late requests were sent. An interrupted run resumes with --keep FILE, phase by
phase.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import yaml

from benchmarks.harness.fleets.fleet import BenchFleet, running
from benchmarks.harness.load import pace
from benchmarks.harness.load.offered_load import FIRST_RATE, FLEET, OverloadBench, Phase
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.kept_parts import KeptParts
from benchmarks.harness.results.options import add_keep, parser_of
from cli.gateway import stream_client
from common.percentiles import Tail, percentile

RULE = rules.of("overload")
TIMES_KNEE: float = RULE.settings["times_knee"]
UNFAIR = "answers_that_are_neither_success_nor_429_with_retry_after"


async def measure(fleet: BenchFleet, slo_s: float, kept: KeptParts) -> list[tuple[Phase, Phase]]:
    """Each seed's phases, at the knee and beyond it, those that are kept included."""
    async with stream_client.session() as http:
        bench, pairs = OverloadBench(http, fleet, slo_s), []
        await bench.phase(FIRST_RATE, seed=0)  # to no account: rates are learned first
        for seed in RULE.reported:
            if (at := kept.get(f"{seed} at the knee", Phase)) is None:
                at = await bench.phase(await bench.knee(seed), seed)
                kept.keep(f"{seed} at the knee", at)
                print(described(at, slo_s), flush=True)
            if (beyond := kept.get(f"{seed} beyond the knee", Phase)) is None:
                beyond = await bench.phase(TIMES_KNEE * at.offered, seed)
                kept.keep(f"{seed} beyond the knee", beyond)
                print(described(beyond, slo_s), flush=True)
            pairs.append((at, beyond))
    return pairs


def described(phase: Phase, slo_s: float) -> str:
    statuses = Counter(outcome.status for outcome in phase.outcomes)
    tail = Tail.of(phase.ttfts)
    return (
        f"offered {phase.offered:.2f}/s: {dict(statuses)}, goodput {phase.goodput(slo_s):.2f}/s, "
        f"p50 and {tail.name} TTFT {percentile(phase.ttfts, 50):.2f} {tail.value:.2f} s, "
        f"well after {phase.recovered_s:g} s, {pace.figures(of.sent_late for of in phase.outcomes)}"
    )


def summary(
    pairs: Sequence[tuple[Phase, Phase]], slo_s: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and goals, one pair a seed."""
    overloads = [overload for _, overload in pairs]
    ratios = [over.goodput(slo_s) / max(at.goodput(slo_s), 1e-9) for at, over in pairs]
    tails = [Tail.of(overload.ttfts) for overload in overloads]
    outcomes = [outcome for overload in overloads for outcome in overload.outcomes]
    figures = {
        "slo_s": slo_s,
        **pace.figures(of.sent_late for pair in pairs for phase in pair for of in phase.outcomes),
        "knee_requests_per_s": [round(at.offered, 3) for at, _ in pairs],
        "attained_at_the_knee": [round(at.attained(slo_s), 4) for at, _ in pairs],
        "offered_requests_per_s": [round(overload.offered, 3) for overload in overloads],
        "offered": len(outcomes),
        "served": sum(len(overload.ttfts) for overload in overloads),
        "refused": sum(outcome.status == 429 for outcome in outcomes),
        "goodput_per_s": [round(overload.goodput(slo_s), 3) for overload in overloads],
        "goodput_at_the_knee_per_s": [round(at.goodput(slo_s), 3) for at, _ in pairs],
        "ttft_p50_s": [round(percentile(overload.ttfts, 50), 3) for overload in overloads],
        "tails": [tail.name for tail in tails],
        "ttft_tail_s": [round(tail.value, 3) for tail in tails],
    }
    unfair = sum(not outcome.is_fair for outcome in outcomes)
    goals = {
        UNFAIR: RULE.judged(UNFAIR, [unfair]),
        "goodput_of_that_at_the_knee": RULE.judged("goodput_of_that_at_the_knee", ratios),
        "tail_ttft_of_the_slo": RULE.judged(
            "tail_ttft_of_the_slo", [tail.value / slo_s for tail in tails]
        ),
        "recovery_s": RULE.judged("recovery_s", [over.recovered_s for over in overloads]),
    }
    return figures, goals


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("overload.run", __doc__)
    add_keep(parser)
    kept = KeptParts(parser.parse_args().keep, "overload", RULE)
    pool = yaml.safe_load(FLEET.read_text())["pools"]["engine"]
    slo_s = float(pool["slo"]["interactive"]["ttft_s"])
    with running(FLEET) as fleet:
        pairs = asyncio.run(measure(fleet, slo_s, kept))
    report.finish("overload", *summary(pairs, slo_s), seeds=RULE.reported)


if __name__ == "__main__":
    main()
