"""Made-up series, of a sample a minute, for tests of the alerts."""

from __future__ import annotations

from collections.abc import Sequence

Series = dict[str, list[float]]
GONE = float("nan")


def constant(value: float, minutes: int = 60) -> list[float]:
    return [value] * (minutes + 1)


def counted(*phases: tuple[float, int]) -> list[float]:
    """A counter, a sample a minute: by how much a minute, for how many minutes."""
    values = [0.0]
    for rate, minutes in phases:
        values += [values[-1] + rate * minute for minute in range(1, minutes + 1)]
    return values


def shown(*phases: tuple[float, int]) -> list[float]:
    """A value for each phase, GONE for none, and how many minutes it is shown."""
    return [value for value, minutes in phases for _ in range(minutes)]


def burning(objective: str, *phases: tuple[float, int]) -> Series:
    """10,000 events a minute, of which a share is bad: (percent, minutes), one after another."""
    labels = f'pool="a", priority="interactive", objective="{objective}"'
    return {
        f'antefix_slo_events_total{{{labels}, result="bad"}}': counted(
            *((100 * percent, minutes) for percent, minutes in phases)
        ),
        f'antefix_slo_events_total{{{labels}, result="good"}}': counted(
            *((10_000 - 100 * percent, minutes) for percent, minutes in phases)
        ),
    }


def first_tokens(after: float, promised: float, objective: str) -> Series:
    """Requests that all have their first token in the bucket below `after` seconds."""
    bounds = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, float("inf")]
    buckets = {
        f'antefix_ttft_seconds_bucket{{pool="a", priority="interactive", le="{bound:g}"}}': counted(
            (60 if bound >= after else 0, 60)
        )
        for bound in bounds
    }
    labels = f'pool="a", priority="interactive", objective="{objective}"'
    return {f"antefix_slo_threshold_seconds{{{labels}}}": constant(promised), **buckets}


def replicas(target: int, **states: int) -> Series:
    return {
        'antefix_target_replicas{pool="a", instance="x"}': constant(target),
        **{
            f'antefix_replicas{{pool="a", state="{state}", instance="{instance}"}}': constant(count)
            for state, count in states.items()
            for instance in "xy"
        },
    }


def gauge(name: str, value: float) -> Series:
    return {f'{name}{{pool="a", replica="r"}}': constant(value)}


def engine_deaths(replica: str, **causes: float) -> Series:
    """As one replica of the pool reports them."""
    labels = f'pool="a", instance="i", replica="{replica}"'
    return {
        f'antefix_engine_recent_deaths{{{labels}, cause="{cause}"}}': constant(count)
        for cause, count in causes.items()
    }


def lookups(ok: float, failed: float) -> Series:
    return {
        'antefix_index_lookups_total{pool="a", result="ok"}': counted((ok, 60)),
        'antefix_index_lookups_total{pool="a", result="failed"}': counted((failed, 60)),
    }


def prefill(learned: float, calibrated: float) -> Series:
    return gauge("antefix_replica_prefill_tokens_per_second", learned) | gauge(
        "antefix_replica_calibrated_prefill_tokens_per_second", calibrated
    )


def generating(tokens_per_s: float, running: float, floor: float | None = 500) -> Series:
    """One replica of a pool that is busy from 50 requests on."""
    whose = 'pool="a", replica="r"'
    series = {
        f"vllm:generation_tokens_total{{{whose}}}": counted((60 * tokens_per_s, 60)),
        f"antefix_replica_running_requests{{{whose}}}": constant(running),
    }
    if floor is None:
        return series
    floors = {"tokens_per_second": floor, "running_requests": 50}
    return series | {
        f'antefix_throughput_floor_{name}{{pool="a", instance="{gateway}"}}': constant(value)
        for name, value in floors.items()
        for gateway in "xy"
    }


def speculation(losing: int, on: int) -> Series:
    return gauge("antefix_speculation_losing", losing) | gauge("antefix_speculation_on", on)


def tier_requests(
    load: Sequence[tuple[float, int]], compute: Sequence[tuple[float, int]], source: str = "disk"
) -> Series:
    """Requests whose prefix is in a tier, as two gateways count them: (requests per minute,
    minutes), one after another."""
    return {
        f'antefix_kv_tier_offers_total{{pool="a", source="{source}", taken="{taken}",'
        f' instance="{gateway}"}}': counted(*phases)
        for taken, phases in (("yes", load), ("no", compute))
        for gateway in "xy"
    }


def gpus(*percents: float, minutes: int = 420) -> Series:
    return {
        f'DCGM_FI_DEV_GPU_UTIL{{Hostname="n", gpu="{gpu}"}}': constant(percent, minutes)
        for gpu, percent in enumerate(percents)
    }


def gpu_memory(used: float, free: float, share: float = 0.9) -> Series:
    """`share`: what the engines of a fleet allocate."""
    return {
        'antefix_gpu_memory_share_ratio{pool="a", instance="x"}': constant(share),
        'DCGM_FI_DEV_FB_USED{Hostname="n", gpu="0"}': constant(used),
        'DCGM_FI_DEV_FB_FREE{Hostname="n", gpu="0"}': constant(free),
    }


def nodes(*up: int) -> Series:
    return {
        f'up{{job="antefix", instance="{node}"}}': constant(value) for node, value in enumerate(up)
    }


def engines(**up: Sequence[float]) -> Series:
    """Pods of engines, as the chart's PodMonitor labels them; a sample a minute."""
    return {
        f'up{{job="antefix", antefix_component="engine", instance="{pod}"}}': list(values)
        for pod, values in up.items()
    }
