"""What a gateway counts, as Prometheus reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from observability.metrics import Families, RoutingMetrics, Served, ShadowChoice
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before, samples_of

CAUSES = ("workload", "routing", "index", "engine")
SERVED = Served(
    policy="prefix",
    signal=True,
    predicted_ttft=0.3,
    ttft=0.4,
    prompt_tokens=1000,
    cached_predicted=768,
    cached_confirmed=640,
    loss={"workload": 128, "routing": 0, "index": 0, "engine": 128},
)
UNKNOWN = Served(
    policy="blind",
    signal=False,
    predicted_ttft=None,
    ttft=None,
    prompt_tokens=0,
    cached_predicted=0,
    cached_confirmed=None,
    loss={},
)


class Counted:
    """One pool's metrics, and what they came to."""

    def __init__(self) -> None:
        self.families = Families()
        self.of = RoutingMetrics(self.families, "main")

    @property
    def samples(self) -> dict[tuple[str, ...], float]:
        return samples_of(self.families.exposition().decode())


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
def test_losses_add_up_by_cause(losses: list[dict[str, int]]) -> None:
    counted = Counted()
    for loss in losses:
        counted.of.served(Served("prefix", True, 0.1, 0.1, 1, 0, 0, loss))
    for cause in CAUSES:
        found = counted.samples.get(("antefix_reuse_loss_tokens_total", cause), 0)
        assert found == sum(loss[cause] for loss in losses)


def test_ttft_is_counted_as_observed_and_as_predicted(counted: Counted) -> None:
    for served in (SERVED, UNKNOWN):
        counted.of.served(served)
    assert counted.samples["antefix_ttft_seconds_count",] == 1
    assert counted.samples["antefix_ttft_seconds_sum",] == 0.4
    assert counted.samples["antefix_predicted_ttft_seconds_sum",] == 0.3
    assert counted.samples["antefix_ttft_seconds_bucket", "0.35"] == 0
    assert counted.samples["antefix_ttft_seconds_bucket", "0.5"] == 1


@pytest.mark.parametrize("result", ["ok", "failed", "skipped"])
def test_lookups_are_counted_by_result_and_timed_when_they_asked(
    counted: Counted, result: str
) -> None:
    counted.of.looked_up(0.0003, result)
    assert counted.samples["antefix_index_lookups_total", result] == 1
    assert counted.samples.get(("antefix_index_lookup_seconds_count",), 0) == (result != "skipped")


def test_the_breaker_is_1_while_it_is_open(counted: Counted) -> None:
    for is_open in (True, False):
        counted.of.breaker(is_open)
        assert counted.samples["antefix_index_breaker_open",] == is_open


def test_the_calibration_error_is_told_once_there_is_one(counted: Counted) -> None:
    name = ("antefix_ttft_prediction_error_ratio",)
    counted.of.calibration(None)
    assert name not in counted.samples
    counted.of.calibration(0.125)
    counted.of.calibration(None)
    assert counted.samples[name] == 0.125


def test_shadow_decisions_are_counted_by_agreement_and_only_lost_time_is_regret(
    counted: Counted,
) -> None:
    for agrees, regret in ((True, 0.0), (False, 0.5), (False, -2.0), (False, 0.25)):
        counted.of.shadow(ShadowChoice("random", agrees, regret))
    assert counted.samples["antefix_shadow_decisions_total", "yes", "random"] == 1
    assert counted.samples["antefix_shadow_decisions_total", "no", "random"] == 3
    assert counted.samples["antefix_shadow_regret_seconds_total", "random"] == 0.75


def test_pools_are_told_apart() -> None:
    families = Families()
    for pool, times in (("large", 1), ("small", 2)):
        for _ in range(times):
            RoutingMetrics(families, pool).served(SERVED)
    found = {
        sample.labels["pool"]: sample.value
        for family in text_string_to_metric_families(families.exposition().decode())
        for sample in family.samples
        if sample.name == "antefix_placements_total"
    }
    assert found == {"large": 1, "small": 2}


def test_two_gateways_in_one_process_count_apart() -> None:
    one, other = Counted(), Counted()
    one.of.served(SERVED)
    assert ("antefix_prompt_tokens_total",) not in other.samples


async def test_a_gateways_counts_need_a_key() -> None:
    async with gateway_before() as front, front.http.get(front.url + "/metrics") as answer:
        assert answer.status == 401


async def test_a_gateway_tells_its_counts_in_prometheus_own_format() -> None:
    async with gateway_before(FakeEngine()) as front:
        for stream in (True, False):
            async with front.post(stream=stream) as answer:
                await answer.read()
        async with front.get("/metrics") as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=")
        samples = await front.metrics()
    assert samples["antefix_placements_total", "prefix", "load"] == 2
    assert samples["antefix_prompt_tokens_total",] == 2
    assert samples["antefix_ttft_seconds_count",] == 2
    assert samples["antefix_ttft_prediction_error_ratio",] >= 0
    assert samples["antefix_index_breaker_open",] == 0
