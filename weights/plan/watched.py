"""Values of a pool that only metrics, alerts and dashboards use, from its plan.

A sound replica is quiet: the floor of its throughput and the objective of the median leave room for
the error of a plan. Operators replace the values with measured ones.
"""

from __future__ import annotations

from typing import Any

from weights.plan.roofline import OfferedLoad, RooflineEngine, speed_of

# Share of the planned rate below which a busy replica is slow. In the comparisons of plans with
# published measurements (docs/planning.md), no engine was that slow.
FLOOR = 0.25
# Share of the objective for the slowest prompts that half of the requests must meet.
MEDIAN = 0.5
# An answer of this many times the mean length still meets the objective for the end of an answer.
LONG_ANSWER = 10
# Seconds per token that an answer may take in a pool without an objective for it.
SLOWEST_TOKEN_S = 0.1


def watched_objectives(
    engine: RooflineEngine, load: OfferedLoad, ttft_s: float, tpot_s: float | None
) -> dict[str, float]:
    """Return `ttft_p50_s` and `e2e_s` of a pool, in seconds, for its replicas under `load`.

    Without the median, if the plan does not meet it.
    """
    median = MEDIAN * ttft_s
    meets_it = speed_of(engine, load).ttft_s <= median
    e2e_s = ttft_s + LONG_ANSWER * load.output * (tpot_s or SLOWEST_TOKEN_S)
    return {**({"ttft_p50_s": median} if meets_it else {}), "e2e_s": round(e2e_s, 1)}


def watched_throughput(engine: RooflineEngine, load: OfferedLoad) -> dict[str, int]:
    """Return `slo.throughput` of a pool whose busy replicas have `load`."""
    tokens_per_s = FLOOR * speed_of(engine, load).requests_s * load.output
    return {"tokens_per_s": max(1, int(tokens_per_s)), "running": load.concurrency}


def token_prices(
    engine: RooflineEngine, load: OfferedLoad, price_per_gpu_hour: float
) -> dict[str, Any]:
    """Return `price` of a pool: per million tokens, in the currency of the GPU's price.

    Prompts and answers share the time of a replica under `load`. Cached tokens take none.
    """
    speed, per_s = speed_of(engine, load), price_per_gpu_hour * engine.tp / 3600
    output_s = speed.step_s / load.concurrency
    prompt_s = (1 / speed.requests_s - load.output * output_s) / load.prompt
    prompt, output = (float(f"{per_s * of * 1e6:.2g}") for of in (prompt_s, output_s))
    return {"prompt": prompt, "cached": 0.0, "output": output}
