"""Capacity: is there room for the load, and how soon is there more?"""

from __future__ import annotations

from observability.dashboards.levels import GREEN, RED, rising
from observability.dashboards.panels import SHARE, Board, Graph, Number
from observability.dashboards.queries import POOL, added, highest, or_none, portion, quantile, rate

_EXPLANATION = """\
**Free capacity, and how soon there is more.** Requests without a first token are the queue. The \
autoscaler compares arrivals with a forecast for the time at which a new replica could serve, and \
sets the number of replicas. Warm ones have started already and take traffic at once. If the pool \
cannot meet its objective, admission queues batch requests, overflows to another pool, or rejects \
(429).

**Good:** the queue is short and young, active replicas follow demand, GPUs are busy but not \
full. **Next:** the queue grows although replicas are active: *Routing* (one replica only?) and \
*Engine* (preemptions?). Rejections affect one tenant: *Tenants*."""

_OLD = rising(5, 30)
_OVERFLOWING = rising(0.01, 0.2)
_ACTIVE = highest("antefix_replicas", "pool", f'{POOL}, state="active"')


def _highest_or(gauge: str, words: str = "none") -> str:
    """Return the highest value of a gauge per pool, or one zero with `words` as its pool."""
    return or_none(highest(gauge, "pool"), "pool", words)


_AT_A_GLANCE = [
    Number("Queue", added("antefix_queue_requests"), steps="AntefixQueueDeep").about(
        "Requests without a first token, in gateways and engines."
    ),
    Number("Oldest in queue", highest("antefix_queue_oldest_seconds"), "s", _OLD).about(
        "Age of the oldest request without a first token."
    ),
    Number("Active replicas", f"sum({_ACTIVE})", steps=((None, RED), (1, GREEN))).about(
        "Replicas that take traffic."
    ),
    Number("Target", f"sum({highest('antefix_target_replicas', 'pool')})").about(
        "Target number of replicas, including warm ones."
    ),
    Number(
        "Rejected",
        portion("antefix_admissions_total", "", 'verdict="rejected"'),
        SHARE,
        rising(0.001, 0.05),
    ).about("Share of requests that admission rejected with 429."),
    Number(
        "Overflowing",
        f"{highest('antefix_overflow_share_ratio')} or vector(0)",
        SHARE,
        _OVERFLOWING,
    ).about("Highest share of a pool's requests that overflowed in the last minute."),
]

_QUEUE = [
    Graph("Queue depth", added("antefix_queue_requests", "pool"), steps="AntefixQueueDeep").about(
        "Requests without a first token, in gateways and engines. The lines are the levels of the "
        "ticket and of the page."
    ),
    Graph("Oldest in queue", highest("antefix_queue_oldest_seconds", "pool"), "s", _OLD).about(
        "A deep queue of young requests moves. A queue that ages is stuck."
    ),
    Graph(
        "Batch requests waiting", or_none(added("antefix_batch_queued_requests", "pool"), "pool")
    ).about("Batch requests queue in gateways, so that interactive ones do not have to."),
    Graph(
        "Oldest batch request", _highest_or("antefix_batch_oldest_queued_seconds"), "s", span=12
    ).about(
        "Waiting time of the next batch request. If it grows without end, there is never capacity "
        "for batch requests."
    ),
    Graph(
        "Waiting and running at replicas",
        {
            "waiting {{pool}}": added("antefix_replica_waiting_requests", "pool"),
            "running {{pool}}": added("antefix_replica_running_requests", "pool"),
        },
        span=12,
    ).about("Requests without and with a first token, as replicas report them."),
]

_NO_AUTOSCALING = "no autoscaling"
_DEMAND = _highest_or("antefix_demand_replicas", _NO_AUTOSCALING)
_ARRIVALS = _highest_or("antefix_arrivals_requests_per_second", _NO_AUTOSCALING)
_FORECAST = _highest_or("antefix_forecast_requests_per_second", _NO_AUTOSCALING)
_TARGET = highest("antefix_target_replicas", "pool")

_REPLICAS = [
    Graph(
        "Demand, target and active",
        {"demand {{pool}}": _DEMAND, "target {{pool}}": _TARGET, "active {{pool}}": _ACTIVE},
    ).about(
        "Demand: active replicas that the autoscaler wants. Target: replicas requested from Ray "
        "Serve, including warm ones. Active: replicas that take traffic."
    ),
    Graph(
        "Replicas by state",
        {"{{state}} {{pool}}": highest("antefix_replicas", "pool, state")},
        stacked=True,
    ).about(
        "Warm ones have loaded the model and wait. Asleep ones have released their memory. "
        "Starting for long: see the startup time."
    ),
    Graph(
        "Forecast against arrivals",
        {"arrivals {{pool}}": _ARRIVALS, "forecast {{pool}}": _FORECAST},
        "reqps",
        dashed="/^forecast/",
    ).about(
        "Requests per second: arrivals, and the forecast for the time at which a new replica "
        "could serve. The forecast should lead the arrivals."
    ),
    Graph(
        "Startup time", highest("antefix_replica_startup_seconds", "pool, replica"), "s", span=24
    ).about(
        "Time from the start of a replica's process until it is ready. The forecast looks this "
        "far ahead."
    ),
]

_NO_PROMOTION = "no promotion yet"
_IDLE = f"max by (pool) (rate(antefix_warm_idle_replica_seconds_total{{{POOL}}}[$__rate_interval]))"
_PROMOTIONS = rate("antefix_warm_promotions_total", "pool")
_PROMOTED = f"{quantile(0.5, 'antefix_warm_promotion_first_token_seconds', 'pool')} >= 0"

_WARM_POOL = [
    Graph("Warm replicas idle", or_none(_IDLE, "pool", "no warm replicas")).about(
        "Mean number of idle warm replicas: the cost of readiness."
    ),
    Graph("Promotions", or_none(_PROMOTIONS, "pool", _NO_PROMOTION), "ops").about(
        "Warm replicas promoted to meet the objective, per second."
    ),
    Graph(
        "First token of a promoted replica", or_none(_PROMOTED, "pool", _NO_PROMOTION), "s"
    ).about("Median time from the arrival of the request that needed it."),
]


def _verdicts(counter: str) -> dict[str, str]:
    return {"{{verdict}} {{priority}}": rate(counter, "priority, verdict")}


_NO_OVERFLOW = "no overflow"
_OPEN = _highest_or("antefix_overflow_open", _NO_OVERFLOW)
_OVERFLOWED = _highest_or("antefix_overflow_share_ratio", _NO_OVERFLOW)

_ADMISSION = [
    Graph(
        "Admissions by verdict", _verdicts("antefix_admissions_total"), "reqps", stacked=True
    ).about(
        "admitted: at once; queued: for a turn; overflowed: to another pool; rejected: 429, also "
        "from the queue."
    ),
    Graph("Outage", highest("antefix_outage", "pool"), steps=rising(0.5, 1), top=1).about(
        "1 while a pool that should have a replica has none."
    ),
    Graph(
        "Admissions in an outage",
        _verdicts("antefix_outage_admissions_total"),
        "reqps",
        stacked=True,
    ).about(
        "admitted and queued: for a start in time; overflowed: regardless of the share; rejected: "
        "503."
    ),
    Graph("Overflow open", _OPEN, top=1).about(
        "1 while requests overflow because this pool cannot meet the objective."
    ),
    Graph("Overflow share", _OVERFLOWED, SHARE, _OVERFLOWING, top=1).about(
        "Share of the last minute's requests that overflowed."
    ),
]


def _of_gpus(gauge: str) -> str:
    return highest(gauge, "Hostname, gpu", "")


_USED, _FREE = _of_gpus("DCGM_FI_DEV_FB_USED"), _of_gpus("DCGM_FI_DEV_FB_FREE")
_FULL = f"100 * {_USED} / ({_USED} + {_FREE})"
_ALLOCATED = "100 * max(antefix_gpu_memory_share_ratio)"

_GPUS = [
    Graph(
        "GPU utilization",
        _of_gpus("DCGM_FI_DEV_GPU_UTIL"),
        "percent",
        "AntefixGpuUtilization",
        top=100,
        span=6,
    ).about(
        "Share of time in which the GPU computed. Green is the target. Below it the GPU is "
        "underused, above it there is no capacity for a peak."
    ),
    Graph(
        "GPU memory",
        {"{{Hostname}} {{gpu}}": _FULL, "engines": _ALLOCATED},
        "percent",
        top=100,
        span=6,
    ).about(
        "Share of the GPU's memory in use. Engines allocate the share of the line `engines` at "
        "their start, so this is level. Near 100% the next allocation may fail."
    ),
    Graph("GPU power", _of_gpus("DCGM_FI_DEV_POWER_USAGE"), "watt", span=6).about(
        "Power draw. It follows the load. Low power at high utilization means that the GPU waits "
        "for memory."
    ),
    Graph(
        "GPU temperature", _of_gpus("DCGM_FI_DEV_GPU_TEMP"), "celsius", rising(80, 88), span=6
    ).about("Hot GPUs throttle themselves, at a temperature that depends on the model."),
]

BOARD = Board(
    "Capacity",
    "Queues, replicas, forecast, warm pool, overflow, admission and GPUs.",
    _EXPLANATION,
    {
        "At a glance": _AT_A_GLANCE,
        "Queue": _QUEUE,
        "Replicas": _REPLICAS,
        "Warm pool": _WARM_POOL,
        "Admission and overflow": _ADMISSION,
        "GPUs (NVIDIA's dcgm-exporter)": _GPUS,
    },
)
