"""What N replicas can promise, and the fewest that meet an SLO."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.scaling.capacity import (
    FULL,
    EngineRates,
    Workload,
    holds,
    needed,
    quantile_wait,
    sequences_per_replica,
    share,
)
from autoscaling.slo import Slo

ENGINE = EngineRates(3500.0, 0.02, 0.0002, 128, 640_000)
WORK = Workload(4.0, 2000.0, 2000.0, 200.0, 4000.0)
SLO = Slo(3.0)
MOST = 1000

engines = st.builds(
    EngineRates,
    st.floats(10, 1e5),
    st.none() | st.floats(1e-4, 1),
    st.none() | st.floats(1e-6, 1e-2),
    st.none() | st.floats(1, 1000),
    st.none() | st.floats(1, 1e7),
)
works = st.builds(
    Workload, st.floats(0, 1e3), *[st.floats(0, 1e5)] * 3, burst_tokens=st.floats(0, 1e6)
)
slos = st.builds(Slo, st.floats(0.1, 60), st.none() | st.floats(0.001, 1))


def test_one_replica_has_the_wait_of_a_single_server_queue() -> None:
    # M/M/1: the wait exceeds t with probability u * exp(-(1 - u) t / s)
    u, s = 0.8, 0.5
    assert quantile_wait(u, 2 * s, 1) == pytest.approx(s / (1 - u) * math.log(u / 0.01))


def test_more_replicas_at_the_same_load_wait_less() -> None:
    waits = [quantile_wait(0.8, 1.0, replicas) for replicas in (1, 2, 4, 8, 16)]
    assert waits == sorted(waits, reverse=True)


def test_prompts_and_tokens_share_a_replicas_time() -> None:
    load = share(ENGINE, replace(WORK, requests_per_s=1.0), 1)
    outputs, prompts = 200.0, 2000.0 / 3500.0
    assert load.busy == pytest.approx(prompts)
    # what prompts and sequences leave is for the steps, one token of each sequence in each
    assert load.tpot_s == pytest.approx(0.02 / (1 - prompts - outputs * 0.0002))


def test_a_replica_is_full_if_prompts_and_tokens_use_all_of_its_time() -> None:
    assert share(ENGINE, WORK, 2) == FULL


@given(engines, works, st.integers(1, 100))
def test_more_replicas_never_make_a_predicted_figure_worse(
    engine: EngineRates, work: Workload, few: int
) -> None:
    before, after = share(engine, work, few), share(engine, work, few + 1)
    for name, value in vars(after).items():
        assert value <= getattr(before, name) * (1 + 1e-9), name


@given(engines, works, slos)
def test_one_replica_fewer_than_needed_does_not_meet_the_slo(
    engine: EngineRates, work: Workload, slo: Slo
) -> None:
    count = needed(engine, work, slo, MOST)
    assert 0 <= count <= MOST
    assert (count == 0) == (work.requests_per_s == 0)
    assert count <= 1 or not holds(share(engine, work, count - 1), slo)
    assert count in (0, MOST) or holds(share(engine, work, count), slo)


@given(engines, works, slos, st.floats(1, 10))
def test_more_requests_never_need_fewer(
    engine: EngineRates, work: Workload, slo: Slo, times: float
) -> None:
    more = replace(work, requests_per_s=work.requests_per_s * times)
    assert needed(engine, more, slo, MOST) >= needed(engine, work, slo, MOST)


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ({"output_tokens": 2000.0}, "sequences"),
        ({"uncached_tokens": 4000.0}, "prefill"),
        ({"prompt_tokens": 60_000.0}, "the KV cache"),
        ({"burst_tokens": 20_000.0}, "bursts"),
    ],
)
def test_each_limit_of_the_engine_raises_the_number_of_replicas(
    change: dict[str, float], by: str
) -> None:
    harder = replace(WORK, **change)
    assert needed(ENGINE, harder, SLO, MOST) > needed(ENGINE, WORK, SLO, MOST), by


def test_a_tpot_objective_may_need_more_replicas_than_a_ttft_objective() -> None:
    quick = Slo(3.0, tpot_s=0.03)
    assert needed(ENGINE, WORK, quick, MOST) > needed(ENGINE, WORK, SLO, MOST)


def test_prompts_that_take_longer_than_the_slo_alone_do_not_ask_for_all_replicas() -> None:
    long = replace(WORK, uncached_tokens=20_000.0, burst_tokens=20_000.0, requests_per_s=0.5)
    assert needed(ENGINE, long, SLO, MOST) < 20


def test_the_sequences_per_replica_are_limited_by_the_engine_and_the_cache() -> None:
    assert sequences_per_replica(ENGINE, WORK) == 128
    assert sequences_per_replica(replace(ENGINE, kv_capacity_tokens=22_000), WORK) == 10
    assert sequences_per_replica(EngineRates(), WORK) == math.inf
