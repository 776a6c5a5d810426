"""Of every alert, series on which it fires, and others on which it is quiet."""

from __future__ import annotations

from collections.abc import Mapping

from tests.observability.alert_series import (
    GONE,
    Series,
    burning,
    constant,
    counted,
    engine_deaths,
    engines,
    first_tokens,
    gauge,
    generating,
    gpu_memory,
    gpus,
    lookups,
    nodes,
    prefill,
    replicas,
    shown,
    speculation,
    tier_requests,
)

DAY_SO_FAR = 7 * 60
_HANGS = 'antefix_engine_hangs_total{pool="a", replica="x"}'
_SUSPECT = 'antefix_engine_suspect{pool="a", replica="x"}'
_DEATHS = 'antefix_engine_recent_deaths{{pool="a", instance="i", replica="{}", cause="died"}}'
_FAILURES = 'antefix_loop_failures_total{instance="x", loop="load_board"}'
_STOPPED = 'antefix_grammars_total{pool="a", replica="x", result="stopped"}'
_FORGED = 'antefix_redis_forged_total{instance="x", kind="settings"}'

# (alert, severity) -> what it fires on, what it is quiet on
CASES: Mapping[tuple[str, str], tuple[list[Series], list[Series]]] = {
    ("AntefixTtftBudgetBurn", "page"): (
        [burning("ttft", (0, 330), (20, 62)), burning("ttft", (8, DAY_SO_FAR))],
        # 20 % for six hours, and good again for 40 minutes: an operator has nothing left to do
        [burning("ttft", (5, DAY_SO_FAR)), burning("ttft", (20, 380), (0, 40))],
    ),
    ("AntefixTtftBudgetBurn", "ticket"): (
        [burning("ttft", (4, DAY_SO_FAR)), burning("ttft", (1.5, DAY_SO_FAR))],
        [burning("ttft", (0.5, DAY_SO_FAR))],
    ),
    ("AntefixTtftMedianBudgetBurn", "ticket"): (
        [burning("ttft_p50", (60, DAY_SO_FAR))],
        [burning("ttft_p50", (40, DAY_SO_FAR))],
    ),
    ("AntefixTpotBudgetBurn", "page"): (
        [burning("tpot", (0, 330), (20, 62)), burning("tpot", (8, DAY_SO_FAR))],
        [burning("tpot", (5, DAY_SO_FAR))],
    ),
    ("AntefixTpotBudgetBurn", "ticket"): (
        [burning("tpot", (4, DAY_SO_FAR)), burning("tpot", (1.5, DAY_SO_FAR))],
        [burning("tpot", (0.5, DAY_SO_FAR))],
    ),
    ("AntefixE2eBudgetBurn", "page"): (
        [burning("e2e", (0, 330), (20, 62)), burning("e2e", (8, DAY_SO_FAR))],
        [burning("e2e", (5, DAY_SO_FAR))],
    ),
    ("AntefixE2eBudgetBurn", "ticket"): (
        [burning("e2e", (4, DAY_SO_FAR)), burning("e2e", (1.5, DAY_SO_FAR))],
        [burning("e2e", (0.5, DAY_SO_FAR))],
    ),
    ("AntefixAvailabilityBudgetBurn", "page"): (
        [burning("availability", (0, 330), (2, 62)), burning("availability", (0.8, DAY_SO_FAR))],
        [burning("availability", (0.5, DAY_SO_FAR))],
    ),
    ("AntefixAvailabilityBudgetBurn", "ticket"): (
        [burning("availability", (0.15, DAY_SO_FAR))],
        [burning("availability", (0.05, DAY_SO_FAR))],
    ),
    ("AntefixGoodputBudgetBurn", "page"): (
        [burning("goodput", (0, 330), (80, 62)), burning("goodput", (35, DAY_SO_FAR))],
        [burning("goodput", (25, DAY_SO_FAR))],
    ),
    ("AntefixGoodputBudgetBurn", "ticket"): (
        [burning("goodput", (6, DAY_SO_FAR))],
        [burning("goodput", (4, DAY_SO_FAR))],
    ),
    ("AntefixTtftP50High", "page"): (
        [first_tokens(after=1.0, promised=0.1, objective="ttft_p50")],
        [
            first_tokens(after=0.25, promised=0.1, objective="ttft_p50"),
            first_tokens(after=5.0, promised=1.0, objective="ttft_p50"),
        ],
    ),
    ("AntefixTtftP99High", "ticket"): (
        [first_tokens(after=5.0, promised=0.5, objective="ttft")],
        [first_tokens(after=1.0, promised=0.5, objective="ttft")],
    ),
    ("AntefixErrorRateHigh", "page"): (
        [burning("availability", (0, 30), (2, 30))],
        [burning("availability", (0.5, 60))],
    ),
    ("AntefixErrorRateHigh", "ticket"): (
        [burning("availability", (0, 30), (0.2, 30))],
        # one bad minute is over before it has been bad for the alert's time
        [burning("availability", (0.05, 60)), burning("availability", (0, 52), (5, 1), (0, 7))],
    ),
    ("AntefixQueueDeep", "page"): (
        [
            gauge("antefix_queue_requests", 501),
            {f'antefix_queue_requests{{pool="a", instance="{i}"}}': constant(300) for i in "xy"},
        ],
        [gauge("antefix_queue_requests", 400)],
    ),
    ("AntefixQueueDeep", "ticket"): (
        [gauge("antefix_queue_requests", 101)],
        [
            gauge("antefix_queue_requests", 99),
            {'antefix_queue_requests{pool="a"}': constant(0, 57) + [200.0] * 3},
        ],
    ),
    ("AntefixNoActiveReplica", "page"): (
        [replicas(target=2, active=0, starting=2)],
        [replicas(target=2, active=1), replicas(target=0, active=0)],
    ),
    ("AntefixReplicasMissing", "ticket"): (
        [replicas(target=3, active=2, warm=0, asleep=0, starting=1)],
        [replicas(target=3, active=1, warm=1, asleep=1), replicas(target=2, active=2, stopping=1)],
    ),
    ("AntefixOverflowLong", "ticket"): (
        [gauge("antefix_overflow_open", 1)],
        [
            gauge("antefix_overflow_open", 0),
            {'antefix_overflow_open{pool="a"}': constant(0, 39) + [1.0] * 20},
        ],
    ),
    ("AntefixPrefillSlow", "ticket"): ([prefill(1500, 3500)], [prefill(2000, 3500)]),
    ("AntefixThroughputLow", "ticket"): (
        [generating(400, running=60), generating(0, running=50)],
        [
            generating(600, running=60),
            generating(0, running=0),
            generating(400, running=49),
            generating(400, running=60, floor=None),
        ],
    ),
    ("AntefixPredictionPoor", "ticket"): (
        [gauge("antefix_ttft_prediction_error_ratio", 0.6)],
        [gauge("antefix_ttft_prediction_error_ratio", 0.3)],
    ),
    ("AntefixSpeculationLosing", "ticket"): (
        [speculation(losing=1, on=1)],
        [speculation(losing=1, on=0), speculation(losing=0, on=1)],
    ),
    ("AntefixKvTierUnused", "ticket"): (
        [
            # it loaded until the rate of loads was measured on a busy node
            tier_requests(load=[(10, 60), (0, 120)], compute=[(0, 60), (10, 120)]),
            tier_requests(load=[(0, 120)], compute=[(2, 120)]),
            # pulls never pay, and loads from the host do
            tier_requests(load=[(0, 120)], compute=[(2, 120)], source="peer")
            | tier_requests(load=[(10, 120)], compute=[(2, 120)], source="host"),
        ],
        [
            tier_requests(load=[(10, 180)], compute=[(10, 180)]),
            tier_requests(load=[(10, 180)], compute=[(0, 180)]),
            # a few loads are enough, and so little traffic proves nothing
            tier_requests(load=[(0.1, 180)], compute=[(100, 180)]),
            tier_requests(load=[(0, 180)], compute=[(0.5, 180)]),
            tier_requests(load=[(0, 180)], compute=[(0, 180)]),
        ],
    ),
    ("AntefixIndexFailing", "ticket"): (
        [lookups(ok=90, failed=10), lookups(ok=0, failed=50)],
        [lookups(ok=99, failed=1), lookups(ok=0, failed=0)],
    ),
    ("AntefixPublisherBehind", "ticket"): (
        [gauge("antefix_publisher_lag_seconds", 8)],
        [gauge("antefix_publisher_lag_seconds", 0.05)],
    ),
    ("AntefixSettingsRefused", "ticket"): (
        [gauge("antefix_settings_refused", 1)],
        [gauge("antefix_settings_refused", 0)],
    ),
    ("AntefixCanaryAborted", "ticket"): (
        [{'antefix_canary_aborted{model="m"}': constant(1)}],
        [{'antefix_canary_aborted{model="m"}': constant(0)}],
    ),
    ("AntefixBudgetsByShare", "ticket"): (
        [gauge("antefix_budgets_by_share", 1)],
        [gauge("antefix_budgets_by_share", 0)],
    ),
    ("AntefixTenantHeld", "ticket"): (
        [gauge("antefix_tenants_held", 1)],
        [gauge("antefix_tenants_held", 0)],
    ),
    ("AntefixKeysStale", "ticket"): (
        [gauge("antefix_keys_stale", 1)],
        [gauge("antefix_keys_stale", 0)],
    ),
    ("AntefixWrongKeys", "ticket"): (
        [{'antefix_errors_total{pool="", kind="invalid_api_key"}': counted((120, 60))}],
        [
            {'antefix_errors_total{pool="", kind="invalid_api_key"}': counted((30, 60))},
            {'antefix_errors_total{pool="a", kind="over_capacity"}': counted((600, 60))},
        ],
    ),
    ("AntefixEngineHangs", "ticket"): (
        [
            {_HANGS: counted((0, 49), (1, 1), (0, 10))},
            # its first sample is its last word: it hung before it was ever read
            {_HANGS: shown((GONE, 50), (1, 2), (GONE, 9))},
        ],
        [{_HANGS: counted((0, 60))}, {_HANGS: shown((1, 30), (GONE, 31))}],
    ),
    ("AntefixEngineSuspect", "ticket"): (
        [{_SUSPECT: shown((0, 50), (1, 11))}],
        # it goes on within a minute, or its replica ends
        [{_SUSPECT: shown((0, 58), (1, 1), (0, 2))}, {_SUSPECT: shown((1, 30), (GONE, 31))}],
    ),
    ("AntefixEngineDeaths", "ticket"): (
        [
            engine_deaths("x", died=2, killed=1),
            engine_deaths("y", died=2, killed=1),
            # each replica lives for a minute, and starts take longer than that
            {_DEATHS.format("x"): shown((GONE, 52), (3, 1), (GONE, 8))},
        ],
        [
            engine_deaths("x", died=2),
            engine_deaths("y", died=2),
            {_DEATHS.format("x"): shown((3, 30), (GONE, 31))},
            # one replica after another, not at once
            {
                _DEATHS.format("x"): shown((2, 55), (GONE, 6)),
                _DEATHS.format("y"): shown((GONE, 55), (2, 6)),
            },
        ],
    ),
    ("AntefixGrammarsWait", "ticket"): (
        [gauge("antefix_grammar_wait_seconds", 25)],
        [gauge("antefix_grammar_wait_seconds", 15)],
    ),
    ("AntefixGrammarsStopped", "ticket"): (
        [{_STOPPED: counted((0, 30), (0.2, 10))}],
        [{_STOPPED: counted((0, 60))}, {_STOPPED: counted((1, 10), (0, 50))}],
    ),
    ("AntefixLoopFails", "ticket"): (
        [
            {_FAILURES: counted((6, 60))},
            {_FAILURES: shown((0, 53), (3, 8))},
            {_FAILURES: shown((GONE, 52), (3, 9))},
        ],
        [
            {_FAILURES: counted((0.1, 60))},
            {_FAILURES: shown((GONE, 52), (2, 9))},
            # old failures, of a process that could not be read for a while
            {_FAILURES: shown((9, 30), (GONE, 20), (9, 11))},
        ],
    ),
    ("AntefixLeasesForged", "ticket"): (
        [gauge("antefix_leases_forged", 1)],
        [gauge("antefix_leases_forged", 0)],
    ),
    ("AntefixRedisFull", "page"): (
        [gauge("antefix_redis_full", 1)],
        [gauge("antefix_redis_full", 0)],
    ),
    ("AntefixRedisForged", "ticket"): (
        [
            {_FORGED: counted((0, 30), (1, 30))},
            {_FORGED: shown((0, 52), (1, 9))},
            {_FORGED: shown((GONE, 52), (1, 9))},
        ],
        [
            {_FORGED: counted((0, 60))},
            {_FORGED: shown((1, 61))},
            {_FORGED: shown((1, 30), (GONE, 20), (1, 11))},
        ],
    ),
    ("AntefixGpuUtilization", "ticket"): (
        [gpus(0, 2), gpus(100, 99.5)],
        [
            gpus(60, 90),
            gpus(97, 98),
            # a warm replica on half of a node, and a node that was just added
            gpus(97, 97, 0, 0),
            gpus(0, 0, minutes=300),
        ],
    ),
    ("AntefixGpuMemory", "page"): (
        [gpu_memory(79, 1), gpu_memory(75, 5, share=0.5)],
        [gpu_memory(77, 3), gpu_memory(80, 0, share=1.0)],
    ),
    ("AntefixGpuMemory", "ticket"): (
        [gpu_memory(77, 3), gpu_memory(70, 10, share=0.5)],
        [gpu_memory(76, 4), gpu_memory(70, 10), gpu_memory(50, 30, share=0.5)],
    ),
    ("AntefixMetricsDown", "page"): ([nodes(0, 0), nodes(0)], [nodes(1, 0)]),
    ("AntefixMetricsDown", "ticket"): (
        [nodes(1, 0), nodes(1, 1, 0), {**nodes(1), **engines(lost=constant(1, 39) + [0.0] * 20)}],
        # a spare pod, and one without an engine, which Ray removes when it has idled
        [
            nodes(1, 1, 1),
            nodes(1),
            {**nodes(1), **engines(spare=constant(0))},
            {**nodes(1), **engines(idle=constant(1, 50) + [0.0] * 9)},
        ],
    ),
}
