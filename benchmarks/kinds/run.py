"""Two kinds of accelerators under one model name: make bench-kinds

Traces are played in virtual time on two autoscaled pools of simulated engines, with the product's
choice, admission, placement and scaling. The slow kind has half of the fast one's speed, at a third
of the price. The product's choice, which learns each kind's rates, is compared with the same choice
by true rates, and with the fastest kind first.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoscaling.slo import Slo
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.options import add_seeds, parser_of
from benchmarks.kinds.pools import (
    AcceleratorKind,
    CompetingPools,
    KindPool,
    PoolChooser,
    by_cost,
    by_speed,
    learned,
    told,
)
from simulator import engine_profile, traces
from simulator.engine_profile import EngineProfile
from simulator.engines import Hardware
from simulator.results import summary
from simulator.simulation import play
from simulator.traces import Trace
from simulator.types import FleetSettings

RULE = rules.of("kinds")
SETTINGS = RULE.settings
SLO = Slo(SETTINGS["ttft_slo"])
LEARNED = learned(SETTINGS["prior"])
OURS, AGAIN, TOLD, FASTEST = "ours", "ours_again", "told", "fastest_first"
SLOW, FAST = "slow", "fast"
# The offset between the two seeds of random choices.
OTHER = 1000


def kinds(engine: EngineProfile) -> list[AcceleratorKind]:
    fast, slower = engine.hardware, SETTINGS["slower"]
    slow = replace(
        fast,
        prefill_rate=fast.prefill_rate / slower,
        step_s=fast.step_s * slower,
        sequence_s=fast.sequence_s * slower,
    )
    of: Mapping[str, Hardware] = {SLOW: slow, FAST: fast}
    return [
        AcceleratorKind(
            name,
            hardware,
            SETTINGS["prices"][name],
            SETTINGS["first_replicas"][name],
            SETTINGS["max_replicas"][name],
        )
        for name, hardware in of.items()
    ]


def choosers(seed: int) -> dict[str, PoolChooser]:
    return {
        OURS: PoolChooser(by_cost, LEARNED, seed=seed),
        AGAIN: PoolChooser(by_cost, LEARNED, seed=OTHER + seed),
        TOLD: PoolChooser(by_cost, told, seed=seed),
        FASTEST: PoolChooser(by_speed, LEARNED, seed=seed),
    }


def played(
    trace: Trace, name: str, of: Sequence[AcceleratorKind], chooser: PoolChooser, startup_s: float
) -> dict[str, float]:
    """Figures of a trace under one chooser; `hours` are of replicas, `cost` of these at their
    prices, and `token_cost` of the served tokens at the prices that choices compare."""
    tokens = trace.block_tokens or 0
    pools = [KindPool(kind, chooser, SLO, startup_s, tokens) for kind in of]
    together = CompetingPools(pools)
    settings = FleetSettings(of[0].hardware, startup_s, SLO)
    result = play(trace, settings, name, together, None, together)
    whole = summary(result)
    figures: dict[str, float | None] = {
        "requests": whole.requests,
        "ttft_p50_s": whole.ttft_p50_s,
        "ttft_p90_s": whole.ttft_p90_s,
        "ttft_p99_s": whole.ttft_p99_s,
        "attained": whole.attainment,
        "rejected": whole.rejected,
    }
    cost = token_cost = 0.0
    for pool in pools:
        kind, seconds = pool.kind, pool.fleet.replica_seconds(result.seconds)
        served = [c.request for c in pool.own(result.calls) if c.first_at is not None]
        price = by_cost(kind)
        cost += kind.price * seconds / 3600
        token_cost += sum(
            r.prompt_tokens * price.prompt + r.answer_tokens * price.output for r in served
        )
        rates = [r.engine.load()["pace"].prefill_rate for r in pool.fleet.serving]
        figures |= {
            f"{kind.name}_hours": seconds / 3600,
            f"{kind.name}_share": len(served) / max(1.0, whole.requests),
            f"{kind.name}_learned_of_true": statistics.fmean(rates) / kind.hardware.prefill_rate,
        }
    figures |= {"cost": cost, "token_cost": token_cost / 1e6}
    return {key: round(figure, 4) for key, figure in figures.items() if figure is not None}


# chooser -> figure -> one a seed
ByChooser = Mapping[str, Mapping[str, Sequence[float]]]


def play_all(seeds: Sequence[int], engine: EngineProfile) -> Mapping[str, ByChooser]:
    """By trace. Prints each play."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for seed in seeds:
        for name, seconds in SETTINGS["seconds"].items():
            whole = traces.synthetic(name, seed).until(seconds)
            trace = whole.scaled(SETTINGS["scale"], seed)
            for by, chooser in choosers(seed).items():
                one = played(trace, by, kinds(engine), chooser, engine.startup_s)
                print(json.dumps({"trace": name, "seed": seed, "by": by, **one}), flush=True)
                of = found.setdefault(name, {}).setdefault(by, {})
                for key, figure in one.items():
                    of.setdefault(key, []).append(figure)
    return found


def ratios(of: ByChooser, figure: str, by: str) -> list[float]:
    """The figure of the product's choice divided by that of another chooser, seed by seed."""
    pairs = zip(of[OURS][figure], of[by][figure], strict=True)
    return [round(ours / other, 4) for ours, other in pairs]


def figures_of(found: Mapping[str, ByChooser]) -> dict[str, Any]:
    goal = RULE.bounds["cost_of_fastest_first"]["at_most"]
    return {
        trace: {
            "by_chooser": of,
            "p99_ttft_of_the_same_again": ratios(of, "ttft_p99_s", AGAIN),
            "token_cost_of_fastest_first": ratios(of, "token_cost", FASTEST),
            "price_ratio_of_no_gain": price_ratio(of, 1.0),
            "price_ratio_of_the_goal": price_ratio(of, goal),
        }
        for trace, of in found.items()
    }


def goals_of(found: Mapping[str, ByChooser]) -> dict[str, Any]:
    return {
        f"{trace}_{goal}": RULE.judged(goal, ratios(of, figure, by))
        for goal, figure, by in (
            ("p99_ttft_of_told", "ttft_p99_s", TOLD),
            ("cost_of_fastest_first", "cost", FASTEST),
        )
        for trace, of in found.items()
    }


def price_ratio(of: ByChooser, share: float) -> float | None:
    """How many times the slow kind's price the fast one must cost at least, so that the product's
    choice costs this share of fastest first. None: no price does it."""
    slow, fast = (
        statistics.fmean(of[OURS][hours]) - share * statistics.fmean(of[FASTEST][hours])
        for hours in (f"{SLOW}_hours", f"{FAST}_hours")
    )
    return None if fast >= 0 else round(max(0.0, -slow / fast), 2)


def main() -> None:
    parser = parser_of("kinds.run", __doc__)
    add_seeds(parser, RULE)
    seeds = parser.parse_args().seeds
    found = play_all(seeds, engine_profile.read(engine_profile.SHIPPED))
    report.finish("kinds", figures_of(found), goals_of(found), seeds=seeds)


if __name__ == "__main__":
    main()
