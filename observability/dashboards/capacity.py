"""Capacity: is there room for the load, and how soon is there more?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.common import StackingMode

from observability.alerts.slo_file import SloFile
from observability.dashboards.levels import steps
from observability.dashboards.panels import (
    GREEN,
    RED,
    Row,
    board,
    graph,
    number,
    rising,
)
from observability.dashboards.queries import (
    POOL,
    added,
    highest,
    or_none,
    portion,
    quantile,
    rate,
)

_EXPLANATION = """\
**Free capacity, and how soon there is more.** Requests without a first token are the queue. The \
autoscaler compares arrivals with a forecast for the time at which a new replica could serve, and \
sets the number of replicas. Warm ones have started already and take traffic at once. If the pool \
cannot meet its objective, admission queues batch requests, overflows to another pool, or rejects \
(429).

**Good:** the queue is short and young, active replicas follow demand, GPUs are busy but not \
full. **Next:** the queue grows although replicas are active: *Routing* (one replica only?) and \
*Engine* (preemptions?). Rejections affect one tenant: *Tenants*."""

_QUEUE = "AntefixQueueDeep"
_NO_AUTOSCALING = "no autoscaling"
_NO_OVERFLOW = "no overflow"
_NO_PROMOTION = "no promotion yet"


def dashboard(slo: SloFile) -> build.Dashboard:
    return board(
        "Capacity",
        "Queues, replicas, forecast, warm pool, overflow, admission and GPUs.",
        _EXPLANATION,
        [
            _at_a_glance(slo),
            _queue(slo),
            _replicas(),
            _warm_pool(),
            _admission(),
            _gpus(slo),
        ],
        runbooks=slo.runbook_base,
    )


def _at_a_glance(slo: SloFile) -> Row:
    return Row(
        "At a glance",
        [
            number(
                "Queue",
                "Requests without a first token, in gateways and engines.",
                added("antefix_queue_requests"),
                "none",
                steps=steps(slo, _QUEUE),
            ),
            number(
                "Oldest in queue",
                "Age of the oldest request without a first token.",
                highest("antefix_queue_oldest_seconds"),
                "s",
                steps=rising(5, 30),
            ),
            number(
                "Active replicas",
                "Replicas that take traffic.",
                f"sum({_replicas_in('active')})",
                "none",
                steps=((None, RED), (1, GREEN)),
            ),
            number(
                "Target",
                "Target number of replicas, including warm ones.",
                f"sum({highest('antefix_target_replicas', 'pool')})",
                "none",
            ),
            number(
                "Rejected",
                "Share of requests that admission rejected with 429.",
                portion("antefix_admissions_total", "", 'verdict="rejected"'),
                "percentunit",
                steps=rising(0.001, 0.05),
            ),
            number(
                "Overflowing",
                "Highest share of a pool's requests that overflowed in the last minute.",
                f"{highest('antefix_overflow_share_ratio')} or vector(0)",
                "percentunit",
                steps=rising(0.01, 0.2),
            ),
        ],
    )


def _queue(slo: SloFile) -> Row:
    batch = added("antefix_batch_queued_requests", "pool")
    return Row(
        "Queue",
        [
            graph(
                "Queue depth",
                "Requests without a first token, in gateways and engines. The lines are the "
                "levels of the ticket and of the page.",
                [(added("antefix_queue_requests", "pool"), "{{pool}}")],
                "none",
                steps=steps(slo, _QUEUE),
            ),
            graph(
                "Oldest in queue",
                "A deep queue of young requests moves. A queue that ages is stuck.",
                [(highest("antefix_queue_oldest_seconds", "pool"), "{{pool}}")],
                "s",
                steps=rising(5, 30),
            ),
            graph(
                "Batch requests waiting",
                "Batch requests queue in gateways, so that interactive ones do not have to.",
                [(or_none(batch, "pool"), "{{pool}}")],
                "none",
            ),
            graph(
                "Oldest batch request",
                "Waiting time of the next batch request. If it grows without end, there is never "
                "capacity for batch requests.",
                [(_highest_or("antefix_batch_oldest_queued_seconds"), "{{pool}}")],
                "s",
                span=12,
            ),
            graph(
                "Waiting and running at replicas",
                "Requests without and with a first token, as replicas report them.",
                [
                    (added("antefix_replica_waiting_requests", "pool"), "waiting {{pool}}"),
                    (added("antefix_replica_running_requests", "pool"), "running {{pool}}"),
                ],
                "none",
                span=12,
            ),
        ],
    )


def _replicas() -> Row:
    demand = _highest_or("antefix_demand_replicas", _NO_AUTOSCALING)
    arrivals = _highest_or("antefix_arrivals_requests_per_second", _NO_AUTOSCALING)
    forecast = _highest_or("antefix_forecast_requests_per_second", _NO_AUTOSCALING)
    startup = highest("antefix_replica_startup_seconds", "pool, replica")
    return Row(
        "Replicas",
        [
            graph(
                "Demand, target and active",
                "Demand: active replicas that the autoscaler wants. Target: replicas requested "
                "from Ray Serve, including warm ones. Active: replicas that take traffic.",
                [
                    (demand, "demand {{pool}}"),
                    (highest("antefix_target_replicas", "pool"), "target {{pool}}"),
                    (_replicas_in("active"), "active {{pool}}"),
                ],
                "none",
            ),
            graph(
                "Replicas by state",
                "Warm ones have loaded the model and wait. Asleep ones have released their "
                "memory. Starting for long: see the startup time.",
                [(highest("antefix_replicas", "pool, state"), "{{state}} {{pool}}")],
                "none",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Forecast against arrivals",
                "Requests per second: arrivals, and the forecast for the time at which a new "
                "replica could serve. The forecast should lead the arrivals.",
                [(arrivals, "arrivals {{pool}}"), (forecast, "forecast {{pool}}")],
                "reqps",
                dashed="/^forecast/",
            ),
            graph(
                "Startup time",
                "Time from the start of a replica's process until it is ready. The forecast looks "
                "this far ahead.",
                [(startup, "{{pool}} {{replica}}")],
                "s",
                span=24,
            ),
        ],
    )


def _warm_pool() -> Row:
    idle = (
        f"max by (pool) (rate(antefix_warm_idle_replica_seconds_total{{{POOL}}}[$__rate_interval]))"
    )
    promotions = rate("antefix_warm_promotions_total", "pool")
    promoted = quantile(0.5, "antefix_warm_promotion_first_token_seconds", "pool")
    return Row(
        "Warm pool",
        [
            graph(
                "Warm replicas idle",
                "Mean number of idle warm replicas: the cost of readiness.",
                [(or_none(idle, "pool", "no warm replicas"), "{{pool}}")],
                "none",
            ),
            graph(
                "Promotions",
                "Warm replicas promoted to meet the objective, per second.",
                [(or_none(promotions, "pool", _NO_PROMOTION), "{{pool}}")],
                "ops",
            ),
            graph(
                "First token of a promoted replica",
                "Median time from the arrival of the request that needed it.",
                [(or_none(f"{promoted} >= 0", "pool", _NO_PROMOTION), "{{pool}}")],
                "s",
            ),
        ],
    )


def _admission() -> Row:
    by, legend = "priority, verdict", "{{verdict}} {{priority}}"
    return Row(
        "Admission and overflow",
        [
            graph(
                "Admissions by verdict",
                "admitted: at once; queued: for a turn; overflowed: to another pool; rejected: "
                "429, also from the queue.",
                [(rate("antefix_admissions_total", by), legend)],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Outage",
                "1 while a pool that should have a replica has none.",
                [(highest("antefix_outage", "pool"), "{{pool}}")],
                "none",
                steps=rising(0.5, 1),
                top=1,
            ),
            graph(
                "Admissions in an outage",
                "admitted and queued: for a start in time; overflowed: regardless of the share; "
                "rejected: 503.",
                [(rate("antefix_outage_admissions_total", by), legend)],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Overflow open",
                "1 while requests overflow because this pool cannot meet the objective.",
                [(_highest_or("antefix_overflow_open", _NO_OVERFLOW), "{{pool}}")],
                "none",
                top=1,
            ),
            graph(
                "Overflow share",
                "Share of the last minute's requests that overflowed.",
                [(_highest_or("antefix_overflow_share_ratio", _NO_OVERFLOW), "{{pool}}")],
                "percentunit",
                steps=rising(0.01, 0.2),
                top=1,
            ),
        ],
    )


def _gpus(slo: SloFile) -> Row:
    by, legend = "Hostname, gpu", "{{Hostname}} {{gpu}}"
    used, free = (highest(f"DCGM_FI_DEV_FB_{part}", by, "") for part in ("USED", "FREE"))
    return Row(
        "GPUs (NVIDIA's dcgm-exporter)",
        [
            graph(
                "GPU utilization",
                "Share of time in which the GPU computed. Green is the target. Below it the GPU "
                "is underused, above it there is no capacity for a peak.",
                [(highest("DCGM_FI_DEV_GPU_UTIL", by, ""), legend)],
                "percent",
                span=6,
                steps=steps(slo, "AntefixGpuUtilization"),
                top=100,
            ),
            graph(
                "GPU memory",
                "Share of the GPU's memory in use. vLLM allocates its part at its start, so this "
                "is level. Near 100% the next allocation may fail.",
                [(f"100 * {used} / ({used} + {free})", legend)],
                "percent",
                span=6,
                steps=steps(slo, "AntefixGpuMemory"),
                top=100,
            ),
            graph(
                "GPU power",
                "Power draw. It follows the load. Low power at high utilization means that the "
                "GPU waits for memory.",
                [(highest("DCGM_FI_DEV_POWER_USAGE", by, ""), legend)],
                "watt",
                span=6,
            ),
            graph(
                "GPU temperature",
                "Hot GPUs throttle themselves, at a temperature that depends on the model.",
                [(highest("DCGM_FI_DEV_GPU_TEMP", by, ""), legend)],
                "celsius",
                span=6,
                steps=rising(80, 88),
            ),
        ],
    )


def _highest_or(gauge: str, words: str = "none") -> str:
    """Return the highest value of a gauge per pool, or one zero with `words` as its pool."""
    return or_none(highest(gauge, "pool"), "pool", words)


def _replicas_in(state: str) -> str:
    return highest("antefix_replicas", "pool", f'{POOL}, state="{state}"')
