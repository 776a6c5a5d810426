"""The series of a fleet that answers its load as planned, from the levels of its fleet file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deployments.fleet.pool import Pool
from deployments.gateway.record.request_watch import promise_of
from tests.observability.alert_series import (
    Series,
    constant,
    counted,
    engines,
    gpu_memory,
    gpus,
    nodes,
)
from weights.plan.roofline import OfferedLoad, RooflineEngine, prefill_rate, speed_of

# of published engines, the slowest generated this share of what a plan has for them
SLOWEST = 0.31
REQUESTS_PER_MINUTE = 1000.0
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, float("inf"))
# 0 while nothing is wrong, and for the pool or the gateway
_GAUGES = (
    *("overflow_open", "speculation_losing", "publisher_lag_seconds", "engine_suspect"),
    *("engine_recent_deaths", "grammar_wait_seconds", "leases_forged", "settings_refused"),
    *("canary_aborted", "budgets_by_share", "tenants_held", "keys_stale", "redis_full"),
)
_COUNTERS = (
    *('errors_total{kind="invalid_api_key"', 'kv_tier_offers_total{source="host", taken="no"'),
    *('engine_hangs_total{replica="r"', 'grammars_total{result="stopped"'),
    *('loop_failures_total{loop="l"', 'redis_forged_total{kind="lease"'),
)


def steady_pool(
    name: str,
    pool: Pool,
    engine: RooflineEngine,
    load: OfferedLoad,
    *,
    generated: float = SLOWEST,
    ttft: float = 1.0,
    answers: float = 1.0,
) -> Series:
    """One hour of a pool whose replica has `load`.

    Factors on what is planned: `generated` tokens per second, times to first `ttft`, and the length
    of `answers`.
    """
    speed, promise = speed_of(engine, load), promise_of(pool)
    label = f'pool="{name}"'
    # seconds to shares of requests: one in a hundred is late, and one in two hundred very late
    first = {speed.ttft_s: 0.985, speed.ttft_p99_s: 0.01, 1.5 * speed.ttft_p99_s: 0.005}
    first = {ttft * seconds: share for seconds, share in first.items()}
    last = {
        speed.ttft_s + answers * times * load.output * speed.tpot_s: share
        for times, share in {1: 0.9, 4: 0.095, 20: 0.005}.items()
    }
    late = {"ttft": first, "ttft_p50": first, "tpot": {speed.tpot_s: 1.0}, "e2e": last}
    bad = {
        objective: sum(share for seconds, share in late[objective].items() if seconds > most)
        for objective, most in promise.objectives["interactive"].items()
    }
    missed = sum(share for objective, share in bad.items() if objective != "ttft_p50")
    bad |= {"availability": 0.0001, "goodput": min(1.0, missed)}
    return {
        **dict(_events(label, bad)),
        **{
            f'antefix_slo_threshold_seconds{{{label}, priority="interactive", '
            f'objective="{objective}"}}': constant(seconds)
            for objective, seconds in promise.objectives["interactive"].items()
        },
        **{
            f'antefix_ttft_seconds_bucket{{{label}, priority="interactive", le="{bound:g}"}}': (
                counted((REQUESTS_PER_MINUTE * _within(first, bound), 60))
            )
            for bound in BUCKETS
        },
        **dict(_of_replica(label, pool, engine, load, generated * speed.requests_s * load.output)),
        **{f"antefix_{gauge}{{{label}}}": constant(0) for gauge in _GAUGES},
        **{f"antefix_{counter}, {label}}}": counted((0, 60)) for counter in _COUNTERS},
    }


def _within(seconds: Mapping[float, float], bound: float) -> float:
    return sum(share for each, share in seconds.items() if each <= bound)


def _events(label: str, bad: Mapping[str, float]) -> Iterator[tuple[str, list[float]]]:
    for objective, share in bad.items():
        of = f'antefix_slo_events_total{{{label}, priority="interactive", objective="{objective}"'
        yield f'{of}, result="bad"}}', counted((REQUESTS_PER_MINUTE * share, 60))
        yield f'{of}, result="good"}}', counted((REQUESTS_PER_MINUTE * (1 - share), 60))


def _of_replica(
    label: str, pool: Pool, engine: RooflineEngine, load: OfferedLoad, tokens_per_s: float
) -> Iterator[tuple[str, list[float]]]:
    replica, throughput = f'{label}, replica="r"', pool.slo.throughput
    count = pool.first_replicas
    rate = prefill_rate(engine, load.prompt)
    yield f"antefix_target_replicas{{{label}}}", constant(count)
    yield f'antefix_replicas{{{label}, state="active"}}', constant(count - pool.warm_replicas)
    yield f'antefix_replicas{{{label}, state="warm"}}', constant(pool.warm_replicas)
    yield f"antefix_queue_requests{{{label}}}", constant(3)
    yield f"antefix_ttft_prediction_error_ratio{{{label}}}", constant(0.2)
    yield f"antefix_speculation_on{{{replica}}}", constant(1)
    yield f"antefix_replica_prefill_tokens_per_second{{{replica}}}", constant(rate)
    calibrated = pool.prefill_rate or rate
    yield (
        f"antefix_replica_calibrated_prefill_tokens_per_second{{{replica}}}",
        constant(calibrated),
    )
    yield f"antefix_replica_running_requests{{{replica}}}", constant(load.concurrency)
    yield f"vllm:generation_tokens_total{{{replica}}}", counted((60 * tokens_per_s, 60))
    yield f'antefix_index_lookups_total{{{label}, result="ok"}}', counted((1000, 60))
    yield f'antefix_index_lookups_total{{{label}, result="failed"}}', counted((1, 60))
    tokens = REQUESTS_PER_MINUTE * load.prompt
    yield f"antefix_prompt_tokens_total{{{label}}}", counted((tokens, 60))
    cached = f'antefix_cached_tokens_total{{{label}, source="confirmed"}}'
    yield cached, counted((tokens / 2, 60))
    if throughput is not None:
        yield (
            f"antefix_throughput_floor_tokens_per_second{{{label}}}",
            constant(throughput.tokens_per_s),
        )
        yield f"antefix_throughput_floor_running_requests{{{label}}}", constant(throughput.running)


def steady_nodes(share: float) -> Series:
    """The nodes of a fleet, whose engines allocate `share` of the memory of the GPUs."""
    used = 80 * (share + 0.3 * (1 - share))
    memory = gpu_memory(used, 80 - used, share)
    return (
        gpus(97, 97, 97, 97, 0, 0, 0, 0, minutes=60) | memory | nodes(1, 1) | engines(r=constant(1))
    )
