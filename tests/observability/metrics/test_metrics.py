"""What a gateway counts, as Prometheus reads it."""

import asyncio
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from common.verdicts import VERDICTS
from observability.metrics.families import Families
from observability.metrics.metrics import (
    AdmissionMetrics,
    OfferingSource,
    ReplicaMetrics,
    RoutingMetrics,
    Served,
    ShadowChoice,
    TierUse,
    TokenSource,
)
from tests.fakes.completions import DEFAULT_MAX_TOKENS
from tests.fakes.engine import FakeEngine
from tests.fakes.front import TENANT, gateway_before, samples_of

CAUSES = ("routing", "index", "engine")
SOURCES = ("host", "disk", "peer")
SERVED = Served(
    policy="prefix",
    signal=True,
    predicted_ttft_s=0.3,
    prompt_tokens=1000,
    cached_predicted=768,
    cached_confirmed=640,
    new=128,
    loss={"routing": 0, "index": 0, "engine": 128},
)
UNKNOWN = Served(
    policy="blind",
    signal=False,
    predicted_ttft_s=None,
    prompt_tokens=0,
    cached_predicted=0,
    cached_confirmed=None,
    new=0,
    loss={},
)


class Counted:
    """One pool's metrics, and what they came to."""

    def __init__(self) -> None:
        self.families = Families()
        self.of = RoutingMetrics(self.families, "main")

    @property
    def samples(self) -> dict[tuple[str, ...], float]:
        self.families.buffer.flush()
        return samples_of(generate_latest(self.families.registry).decode())


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_placement_is_counted_by_policy_and_by_what_was_known(counted: Counted) -> None:
    for served in (SERVED, SERVED, UNKNOWN):
        counted.of.served(served)
    assert counted.samples["antefix_placements_total", "prefix", "index"] == 2
    assert counted.samples["antefix_placements_total", "blind", "load"] == 1


def test_prompt_tokens_are_counted_and_what_was_cached_of_them(counted: Counted) -> None:
    for served in (SERVED, SERVED, UNKNOWN):
        counted.of.served(served)
    assert counted.samples["antefix_prompt_tokens_total",] == 2000
    assert counted.samples["antefix_cached_tokens_total", "predicted"] == 2 * 768
    assert counted.samples["antefix_cached_tokens_total", "confirmed"] == 2 * 640


@given(st.lists(st.fixed_dictionaries({cause: st.integers(0, 10**6) for cause in CAUSES})))
def test_lost_tokens_are_summed_by_cause(losses: list[dict[str, int]]) -> None:
    counted = Counted()
    for loss in losses:
        counted.of.served(Served("prefix", True, 0.1, 1, 0, 0, 5, loss))
    assert counted.samples["antefix_new_prompt_tokens_total",] == 5 * len(losses)
    for cause in CAUSES:
        found = counted.samples.get(("antefix_reuse_loss_tokens_total", cause), 0)
        assert found == sum(loss[cause] for loss in losses)


def test_the_predicted_ttft_is_counted_where_there_is_one(counted: Counted) -> None:
    for served in (SERVED, UNKNOWN):
        counted.of.served(served)
    assert counted.samples["antefix_predicted_ttft_seconds_count",] == 1
    assert counted.samples["antefix_predicted_ttft_seconds_sum",] == 0.3
    assert counted.samples["antefix_predicted_ttft_seconds_bucket", "0.2"] == 0
    assert counted.samples["antefix_predicted_ttft_seconds_bucket", "0.35"] == 1


def test_counters_of_possible_events_start_at_0(counted: Counted) -> None:
    AdmissionMetrics(counted.families, "main")
    samples = counted.samples
    for result in ("ok", "failed", "skipped"):
        assert samples["antefix_index_lookups_total", result] == 0
    for verdict in VERDICTS:
        assert samples["antefix_admissions_total", "interactive", verdict] == 0
    assert samples["antefix_warm_promotions_total",] == 0


def test_replicas_are_counted_by_state_and_an_empty_state_is_0(counted: Counted) -> None:
    counted.of.replicas({"active": 2, "starting": 1}, 3)
    counted.of.replicas({"active": 3}, 3)
    samples = counted.samples
    found = [samples["antefix_replicas", state] for state in ("active", "starting", "asleep")]
    assert found == [3, 0, 0]
    assert samples["antefix_target_replicas",] == 3


def test_a_replica_that_has_computed_nothing_has_no_prefill_rate() -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics(12.5, None, registry)
    metrics.prefill(None)
    metrics.queue(waiting=1, running=2, queued_prefill_tokens=300)
    metrics.index(lag_s=0.5, synced=True)
    samples = samples_of(generate_latest(registry).decode())
    told = {
        name: value
        for (name, *labels), value in samples.items()
        if not labels and not name.endswith("_created")
    }
    assert told == {
        "antefix_replica_startup_seconds": 12.5,
        "antefix_replica_waiting_requests": 1,
        "antefix_replica_running_requests": 2,
        "antefix_replica_queued_prefill_tokens": 300,
        "antefix_publisher_lag_seconds": 0.5,
        "antefix_grammar_wait_seconds": 0,
        "antefix_publisher_synced": 1,
        "antefix_engine_suspicions_total": 0,
        "antefix_engine_suspect": 0,
        "antefix_engine_hangs_total": 0,
    }


def test_a_suspicion_is_counted_once_until_the_engine_recovers() -> None:
    metrics = ReplicaMetrics(startup_s=12.5, calibrated=None)
    told = []
    for may_hang in (True, True, False, True):
        metrics.suspect(may_hang)
        samples = samples_of(generate_latest(metrics._families.registry).decode())
        count = samples["antefix_engine_suspicions_total",]
        told.append((samples["antefix_engine_suspect",], count))
    assert told == [(1, 1), (1, 1), (0, 1), (1, 2)]


def test_a_start_is_reported_by_phase() -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics(12.5, None, registry)
    metrics.started({"import": 6.0, "engine": 5.5})
    samples = samples_of(generate_latest(registry).decode())
    assert samples["antefix_replica_start_phase_seconds", "import"] == 6.0
    assert samples["antefix_replica_start_phase_seconds", "engine"] == 5.5


@pytest.mark.parametrize("result", ["plain", "known", "fits", "rejected", "untried"])
def test_constraint_counters_start_at_0(result: str) -> None:
    registry = CollectorRegistry()
    ReplicaMetrics(12.5, None, registry)
    samples = samples_of(generate_latest(registry).decode())
    assert samples["antefix_grammars_total", result] == 0


@pytest.mark.parametrize("result", ["ok", "failed", "skipped"])
def test_lookups_are_counted_by_result_and_timed_if_they_reached_redis(
    counted: Counted, result: str
) -> None:
    counted.of.looked_up(0.0003, result)
    assert counted.samples["antefix_index_lookups_total", result] == 1
    assert counted.samples.get(("antefix_index_lookup_seconds_count",), 0) == (result != "skipped")


def test_a_pool_without_tiers_exports_no_metrics_of_them(counted: Counted) -> None:
    counted.of.served(SERVED)
    counted.of.tiered(TierUse("cache", {"cache": 16}, 0.1, 0.1))
    assert not [name for name, *_ in counted.samples if "tier" in name]


def test_the_ways_to_a_prefix_in_a_tier_and_its_sources_are_counted_from_0_on(
    counted: Counted,
) -> None:
    tokens: dict[TokenSource, int] = {"cache": 16, "host": 48, "peer": 0, "computed": 20}
    counted.of.begin_tiers(peers=False, prefill=False)
    counted.of.tiered(TierUse("host", tokens, 0.25, 0.5))
    counted.of.begin_tiers(peers=False, prefill=False)
    samples = counted.samples
    ways = ("cache", "host", "disk", "compute")
    assert [samples["antefix_kv_tier_requests_total", way] for way in ways] == [0, 1, 0, 0]
    assert not [labels for labels in samples if "peer" in labels]
    seconds = "antefix_kv_tier_ttft_seconds_total"
    assert (samples[seconds, "predicted", "host"], samples[seconds, "measured", "host"]) == (
        0.25,
        0.5,
    )
    assert samples[seconds, "measured", "disk"] == 0
    sources = ("cache", "host", "computed")
    found = [samples["antefix_kv_tier_prompt_tokens_total", source] for source in sources]
    assert found == [16, 48, 20]


def test_what_a_replica_could_load_and_did_not_is_counted_from_0_on(counted: Counted) -> None:
    offers = "antefix_kv_tier_offers_total"
    counted.of.begin_tiers(peers=True, prefill=False)
    assert {counted.samples[offers, of, taken] for of in SOURCES for taken in ("yes", "no")} == {0}
    taken: dict[OfferingSource, bool] = {"host": True, "peer": False}
    counted.of.tiered(TierUse("host", {"host": 48}, 0.25, 0.5, taken))
    counts = {(of, t): counted.samples[offers, of, t] for of in SOURCES for t in ("yes", "no")}
    assert {key for key, count in counts.items() if count} == {("host", "yes"), ("peer", "no")}


def test_pulls_are_counted_from_0_on_in_a_pool_whose_replicas_pull(counted: Counted) -> None:
    requests, tokens = "antefix_kv_tier_requests_total", "antefix_kv_tier_prompt_tokens_total"
    seconds = "antefix_kv_tier_ttft_seconds_total"
    counted.of.begin_tiers(peers=True, prefill=False)
    samples = counted.samples
    assert samples[requests, "peer"] == samples[tokens, "peer"] == 0
    assert samples[seconds, "predicted", "peer"] == samples[seconds, "measured", "peer"] == 0
    counted.of.tiered(TierUse("peer", {"host": 32, "peer": 64, "computed": 4}, 0.25, 0.5))
    samples = counted.samples
    assert (samples[requests, "peer"], samples[tokens, "peer"]) == (1, 64)
    assert samples[seconds, "measured", "peer"] == 0.5
    assert not [labels for labels in samples if "prefill" in labels]
    counted.of.begin_tiers(peers=True, prefill=True)
    assert counted.samples[requests, "prefill"] == counted.samples[tokens, "prefill"] == 0


def test_a_replica_exports_the_rate_of_its_loads_once_it_has_loaded() -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics(12.5, None, registry)
    metrics.tier_load("host", 0.0)
    assert "tier" not in generate_latest(registry).decode()
    metrics.tier_load("host", 4000.0)
    samples = samples_of(generate_latest(registry).decode())
    assert samples["antefix_replica_tier_load_tokens_per_second", "host"] == 4000


def test_a_replica_exports_what_it_took_from_others() -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics(12.5, None, registry)
    assert "handover" not in generate_latest(registry).decode()
    metrics.handovers({"new": (2, 400), "heir": (0, 0)})
    metrics.handovers({"new": (2, 400), "heir": (1, 100)})
    samples = samples_of(generate_latest(registry).decode())
    assert samples["antefix_replica_handover_prefixes_total", "new"] == 2
    assert samples["antefix_replica_handover_tokens_total", "new"] == 400
    assert samples["antefix_replica_handover_tokens_total", "heir"] == 100


def test_the_breaker_is_1_while_it_is_open(counted: Counted) -> None:
    for is_open in (True, False):
        counted.of.breaker(is_open)
        assert counted.samples["antefix_index_breaker_open",] == is_open


def test_the_prediction_error_is_exported_once_there_is_one(counted: Counted) -> None:
    name = ("antefix_ttft_prediction_error_ratio",)
    counted.of.prediction_error(None)
    assert name not in counted.samples
    counted.of.prediction_error(0.125)
    counted.of.prediction_error(None)
    assert counted.samples[name] == 0.125


def test_shadow_decisions_are_counted_by_agreement_and_only_lost_time_is_regret(
    counted: Counted,
) -> None:
    for agrees, regret in ((True, 0.0), (False, 0.5), (False, -2.0), (False, 0.25)):
        counted.of.shadow(ShadowChoice("random", agrees, regret))
    assert counted.samples["antefix_shadow_decisions_total", "yes", "random"] == 1
    assert counted.samples["antefix_shadow_decisions_total", "no", "random"] == 3
    assert counted.samples["antefix_shadow_regret_seconds_total", "random"] == 0.75


def test_metrics_distinguish_pools() -> None:
    families = Families()
    for pool, times in (("large", 1), ("small", 2)):
        for _ in range(times):
            RoutingMetrics(families, pool).served(SERVED)
    families.buffer.flush()
    found = {
        sample.labels["pool"]: sample.value
        for family in text_string_to_metric_families(generate_latest(families.registry).decode())
        for sample in family.samples
        if sample.name == "antefix_placements_total"
    }
    assert found == {"large": 1, "small": 2}


def test_two_gateways_in_one_process_count_apart() -> None:
    one, other = Counted(), Counted()
    one.of.served(SERVED)
    assert other.samples["antefix_prompt_tokens_total",] == 0


OK = ("antefix_requests_total", "ok", "interactive")


async def test_a_gateway_counts_what_it_serves() -> None:
    engine = FakeEngine()
    engine.token_delay_s = 0.01  # otherwise all are one piece
    async with gateway_before(engine) as front:
        for stream in (True, False):
            async with front.post(stream=stream) as answer:
                await answer.read()
        async with asyncio.timeout(60):
            while (samples := await front.metrics())[OK] != 2:  # noqa: ASYNC110  # nothing shows it
                await asyncio.sleep(0.01)
    assert samples["antefix_placements_total", "prefix", "load"] == 2
    assert samples["antefix_prompt_tokens_total",] == 2
    assert samples["antefix_output_tokens_total",] == 2 * DEFAULT_MAX_TOKENS
    assert samples["antefix_ttft_seconds_count", "interactive"] == 2
    assert samples["antefix_tpot_seconds_count", "interactive"] == 2
    assert samples["antefix_request_duration_seconds_count", "interactive"] == 2
    assert samples["antefix_inter_token_latency_seconds_count",] >= 1
    assert samples["antefix_tenant_tokens_total", "output", TENANT] == 2 * DEFAULT_MAX_TOKENS
    assert samples["antefix_queue_requests",] == 0
    assert samples["antefix_ttft_prediction_error_ratio",] >= 0
    assert samples["antefix_index_breaker_open",] == 0


def test_a_replica_without_speculation_exports_no_metrics_of_it() -> None:
    registry = CollectorRegistry()
    ReplicaMetrics(12.5, None, registry)
    assert "speculation" not in generate_latest(registry).decode()


def test_an_unknown_speedup_of_speculation_is_nan() -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics(12.5, None, registry)
    metrics.speculation(True, False, None, 0.7, 2.5, 2.4)
    samples = samples_of(generate_latest(registry).decode())
    assert samples["antefix_speculation_on",] == 1
    assert samples["antefix_speculation_tokens_per_pass",] == 2.5
    assert isnan(samples["antefix_speculation_speedup_ratio",])
