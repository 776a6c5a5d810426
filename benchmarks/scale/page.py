"""The figures of page.md, from a result that is kept; the same result gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.results import goal_groups, report
from benchmarks.scale import costs, published, redis_load, results, simulate, traffic
from benchmarks.scale import goals as wanted
from benchmarks.scale.choosers import ORACLE
from benchmarks.scale.goals import NO_REUSE, RECORDED, at_stage, saturated, times
from benchmarks.scale.published import STAGES
from benchmarks.scale.results import FleetSummary
from benchmarks.scale.simulate import CONVERSATIONS, OURS, TREE
from loadgen.workloads import WORKLOADS

GOALS = {
    "Cached tokens, divided by the ceiling": "hits_of_ceiling_.*",
    "Variation of requests over the replicas": "variation_.*",
    "Mean TTFT, divided by the best other's": ".*_mean_ttft_by_best_other",
    "p99 TTFT, divided by the best other's": ".*_p99_ttft_by_best_other",
    "Random's mean TTFT, divided by Antefix's": ".*_mean_ttft_of_random",
    "Random's p90 or p99, divided by Antefix's": ".*_p9[09]_ttft_of_random",
    "Growth of a cost, as a power": ".*_power",
}


def page(result: Mapping[str, Any]) -> str:
    """The whole document."""
    figures, goals = result["figures"], result["goals"]
    found = results.read(figures["simulations"])
    fleets = [s for s in found if s.case.workload == CONVERSATIONS]
    sizes = {
        (f"`{s.case.policy}`", f"{s.case.replicas:,}"): _hits_tail_variation(s)
        for s in fleets
        if s.case.gateways == 1
    }
    several = [s.case.gateways for s in fleets if s.case.policy == OURS]
    ends = {min(several), max(several)}
    gateways = {
        (f"{s.case.replicas:,}", str(s.case.gateways)): (
            f"{_hits_tail_variation(s)}, {s.decision_ms_p50:.2f}"
        )
        for s in fleets
        if s.case.policy == OURS and s.case.gateways in ends
    }
    return report.filled(
        __file__,
        largest=max(s.case.replicas for s in found),
        met=goal_groups.met(goals),
        **_answers(found, fleets, goals),
        measured=report.measured(result),
        goals=goal_groups.table(goals, GOALS, only_met=True),
        sizes=report.grid("Policy", sizes),
        gateways=report.grid("Replicas", gateways),
        llm_d=_llm_d(found),
        growths=_growths(figures["growth"]),
        fewest=_span([s.requests // s.case.replicas for s in fleets], "d"),
        **_traffic(found),
        **_redis(figures["redis_busy"], goals["redis_head_room_at_1000_replicas"]["figure"]),
        axes=", ".join(
            f"{least:,} to {least * costs.FACTOR:,} {axis.replace('_', ' ')}"
            for axis, least in costs.SMALLEST.items()
        ),
        costs=costs,
        load=redis_load,
        published=published,
        simulate=simulate,
        traffic=traffic,
        wanted=wanted,
    )


def _answers(
    found: Sequence[FleetSummary], fleets: Sequence[FleetSummary], goals: Mapping[str, Any]
) -> dict[str, str]:
    ours = {
        (s.case.replicas, s.case.gateways): s.of_ceiling for s in fleets if s.case.policy == OURS
    }
    largest, most = (max(of) for of in zip(*ours, strict=True))
    small = [hits for (replicas, _), hits in ours.items() if replicas < largest]
    tree = [s for s in fleets if s.case.policy == TREE and s.case.gateways > 1]
    by_other = {
        what: [goals[name]["figure"] for name in goals if name.endswith(f"{what}_by_best_other")]
        for what in ("mean_ttft", "p99_ttft")
    }
    stages = {rate: stage for rate, stage in STAGES.items() if stage.is_saturated}
    return {
        "hits": _span([hits for (at, _), hits in ours.items() if at == largest], ".1%"),
        "hits_on_fewer": f", and {_span(small, '.1%')} on fewer" if small else "",
        "most": str(most),
        "hits_of_one": _span(
            [hits / ours[at, 1] for (at, gateways), hits in ours.items() if gateways == most], ".1%"
        ),
        "hits_of_trees": ", ".join(f"{s.of_ceiling:.1%} with {s.case.gateways}" for s in tree),
        **{name: _span(of, ".2f") for name, of in by_other.items()},
        "saturated_here": " and ".join(f"{times(at_stage(found, rate))[0]:.0f}" for rate in stages),
        "saturated_there": " and ".join(f"{stage.times[0]:.0f}" for stage in stages.values()),
    }


def _span(figures: Sequence[float], form: str) -> str:
    least, most = f"{min(figures):{form}}", f"{max(figures):{form}}"
    return least if least == most else f"{least} to {most}"


def _hits_tail_variation(s: FleetSummary) -> str:
    return f"{s.of_ceiling:.4f}, {s.ttft_p99_s:.3f}, {s.variation_requests:.4f}"


def _traffic(found: Sequence[FleetSummary]) -> dict[str, Any]:
    """Of workloads and of recorded traces, without the oracle."""
    played = [s for s in found if s.case.policy != ORACLE]
    recorded = {
        (f"`{s.case.policy}`", f"{s.case.rate:g}"): f"{s.ttft_mean_s:.3f}"
        for s in played
        if s.case.workload == RECORDED
    }
    plain: dict[float, dict[str, float]] = {}
    for s in played:
        if s.case.workload == NO_REUSE:
            plain.setdefault(s.case.rate, {})[s.case.policy] = s.ttft_mean_s
    ratios = [means.pop(OURS) / min(means.values()) for means in plain.values()]
    pair = saturated(found)
    assert pair is not None  # without the traces there is no page
    return {
        "chats": report.grid(
            "Workload", _chats([s for s in played if s.case.workload in WORKLOADS])
        ),
        "recorded": report.grid("Policy", recorded),
        "plain_rates": _span([*plain], "g"),
        "plain_ratios": _span(ratios, ".2f"),
        "random": pair[0],
    }


def _chats(chats: Sequence[FleetSummary]) -> dict[tuple[str, str], str]:
    """By workload: the mean TTFT of Antefix, of the best other policy and of random; the most
    cached tokens of Antefix and of another policy."""
    cells = {}
    for workload in dict.fromkeys(s.case.workload for s in chats):
        of = {s.case.policy: s for s in chats if s.case.workload == workload}
        ours, random = of.pop(OURS), of["random"]
        best = min(of.values(), key=lambda s: s.ttft_mean_s)
        row = f"`{workload}`"
        cells[row, "Antefix"] = f"{ours.ttft_mean_s:.3f}"
        cells[row, "Best other"] = f"{best.ttft_mean_s:.3f} `{best.case.policy}`"
        cells[row, "`random`"] = f"{random.ttft_mean_s:.3f}"
        if most := max((s.of_ceiling for s in of.values() if s.cached_ratio), default=None):
            cells[row, "Best other, cached"] = f"{most:.4f}"
        if ours.cached_ratio:
            cells[row, "Antefix, cached"] = f"{ours.of_ceiling:.4f}"
    return cells


def _llm_d(found: Sequence[FleetSummary]) -> str:
    """llm-d's stages, and the same simulated."""
    cells = {}
    for rate, stage in STAGES.items():
        of, row = at_stage(found, rate), f"{rate:g}"
        for name in ("random", "estimated", "precise"):
            one = getattr(stage, name)
            cells[row, f"llm-d: {name}"] = f"{one.mean_s:.3f}, {one.p90_s:.3f}"
        cells[row, "ratio"] = "{:.0f}, {:.0f}".format(*stage.times)
        for policy in ("random", TREE, OURS):
            s = of[policy]
            cells[row, f"`{policy}`"] = f"{s.ttft_mean_s:.3f}, {s.ttft_p90_s:.3f}"
        cells[row, "ratio here"] = "{:.0f}, {:.0f}".format(*times(of))
    return report.grid("Rate", cells)


def _redis(busy: Mapping[str, float], head_room: float) -> dict[str, Any]:
    rates = redis_load.CALLS_PER_S
    rows = [("Call", "Per second", "CPU of one call, µs", "Share of a core")]
    rows += [
        (kind, f"{rates[kind]:,.0f}", f"{1e6 * of / rates[kind]:,.0f}", f"{of:.1%}")
        for kind, of in busy.items()
    ]
    on_nodes = redis_load.pools_on_nodes()
    return {
        "redis": report.padded(rows),
        "head_room": head_room,
        "on_nodes": ", ".join(map(str, on_nodes)),
        "gain": sum(on_nodes) / max(on_nodes),
    }


def _growths(growths: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [("Cost", "Axis", "Milliseconds", "Power")]
    for cost, (_, axes) in costs.CASES.items():
        for axis in axes:
            growth = growths[f"{cost}_by_{axis}"]
            ms = "{0:.3g} to {4:.3g}".format(*growth["ms"])
            rows.append((cost, axis.replace("_", " "), ms, f"{growth['power']:.2f}"))
    return report.padded(rows)
