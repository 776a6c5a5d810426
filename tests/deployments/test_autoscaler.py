"""The autoscaling policy over a real Redis; `tests/on_serve/test_autoscaling.py` has Ray Serve."""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from ray.serve.config import AutoscalingContext

from autoscaling.scaling.scaling import Signals
from common import loops
from deployments import autoscaler
from deployments.autoscaler import PoolAutoscaler, Watch, limits_of
from deployments.fleet.applications import settings_of
from deployments.fleet.fleet import Fleet
from router.board.fleet_settings import GivenSettings, settings_key
from router.board.pool_demand import DemandCounters, demand_key
from router.redis.redis_keys import BoardName
from router.redis.signature import Signer, signed
from tests.ports import free_ports
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess, running

BOARD = BoardName("test/engine")
NO_REDIS = "redis://127.0.0.1:1/0"


def fleet_of(**autoscaling: Any) -> Fleet:
    pool = {
        "model": "org/model",
        "slo": {"interactive": {"ttft_s": 2.0}},
        "autoscaling": {"max_replicas": 3, "startup_s": 5.0, **autoscaling},
    }
    return Fleet.model_validate({"name": "test", "pools": {"engine": pool}})


def context_of(replicas: int, state: dict[str, Any]) -> AutoscalingContext:
    context: Any = SimpleNamespace(
        current_num_replicas=replicas, target_num_replicas=replicas, policy_state=state
    )
    return context  # type: ignore[no-any-return]


@pytest.mark.parametrize("on_the_board", [1, 2, 3])
def test_replaced_engines_do_not_count_as_additional_ones(
    on_the_board: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are wanted: one has not left the board, one has not started, or both run."""
    monkeypatch.setattr(Watch, "keep", lambda self: None)
    policy = PoolAutoscaler(BOARD, NO_REDIS, fleet_of(), 0.0, signer=None)
    policy.watch = watch = Watch(BOARD, NO_REDIS, fleet_of(), is_current=True)
    watch.signals = Signals(now=time.monotonic(), running=on_the_board)
    context: Any = SimpleNamespace(current_num_replicas=1, target_num_replicas=2, policy_state={})
    assert policy(context)[0] == 2


def test_a_pool_without_autoscaling_reduces_the_gpu_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Watch, "keep", lambda self: None)
    slo = {"interactive": {"ttft_s": 2.0}}
    two = {"tensor_parallel_size": 2}
    pools = {
        "fixed": {"model": "org/fixed", "replicas": 3, "engine_args": two},
        "scaled": {
            "model": "org/scaled",
            "slo": slo,
            "autoscaling": {"max_replicas": 9},
            "engine_args": two,
        },
    }
    fleet = Fleet.model_validate({"name": "gpus", "gpu_budget": 10, "pools": pools})

    def targets(pool: str, waiting: int) -> int:
        board = fleet.board_of(pool)
        policy = PoolAutoscaler(board, NO_REDIS, fleet, 2.0, signer=None)
        policy.watch = watch = Watch(board, NO_REDIS, fleet, is_current=True)
        watch.signals = Signals(now=time.monotonic(), running=waiting, in_flight=waiting)
        return policy(context_of(waiting, {}))[0]

    assert targets("fixed", 3) == 3
    # each of nine that run has one request
    assert targets("scaled", 9) == 2


def test_a_failed_decision_keeps_the_replica_count_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Watch, "keep", lambda self: None)
    monkeypatch.setattr(autoscaler, "DECIDE_PERIOD_S", 0.0)
    policy = PoolAutoscaler(BOARD, NO_REDIS, fleet_of(), 0.0, signer=None)
    policy.watch = watch = Watch(BOARD, NO_REDIS, fleet_of(), is_current=True)
    watch.signals = Signals(now=time.monotonic(), running=2)
    (target, state), failed = policy(context_of(2, {})), loops.failures["autoscaler"]
    assert target == 2 and state
    with monkeypatch.context() as patch:
        patch.setattr(autoscaler, "decide", lambda *_: math.sqrt(-0.05))
        for _ in range(3):
            assert policy(context_of(2, state)) == (2, {})
    assert loops.failures["autoscaler"] == failed + 3
    assert (
        sum(
            "failed to decide the number of replicas" in record.message for record in caplog.records
        )
        == 1
    )
    # the policy is pickled with what it noted
    assert pickle.loads(pickle.dumps(policy))(context_of(2, {}))[0] == 2


SIGNER = Signer("secret")


def settings_text(**pool: Any) -> str:
    """As a gateway writes it."""
    given = {"model": "org/model", "slo": {"interactive": {"ttft_s": 2.0}}, **pool}
    fleet = Fleet.model_validate({"name": "test", "pools": {"engine": given}})
    told = settings_of(fleet.model_dump(mode="json"))
    return msgspec.json.encode(GivenSettings(10**15, json.dumps(told))).decode()


HUGE = {
    "fixed": {"replicas": 9000},
    "scaled": {"autoscaling": {"min_replicas": 8000, "max_replicas": 9000}},
}


@pytest.mark.parametrize("huge", HUGE.values(), ids=HUGE)
@pytest.mark.parametrize("signer", [None, Signer("another"), SIGNER])
def test_no_settings_in_redis_move_the_replicas_out_of_the_bounds_of_the_fleet(
    server: RedisProcess, signer: Signer | None, huge: dict[str, Any]
) -> None:
    """Nor those that a holder of the secret signs, as an engine does."""
    key = settings_key("test")
    with control(server) as client:
        client.flushall()
        client.set(key, signed(signer, key, settings_text(**huge)))
    policy = PoolAutoscaler(BOARD, server.url, fleet_of(max_replicas=3), 0.0, signer=SIGNER)
    targets: list[int] = []
    deadline = time.monotonic() + 60
    while len(targets) < 20 or policy.watch is None or not policy.watch.is_current:
        targets.append(policy(context_of(2, {}))[0])
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert max(targets) <= 3


def test_demand_that_the_fleet_did_not_sign_starts_no_replica(server: RedisProcess) -> None:
    forged = DemandCounters(sequence=1, waiting=10**6, queued_tokens=10**9)
    with control(server) as client:
        client.flushall()
    policy = PoolAutoscaler(BOARD, server.url, fleet_of(max_replicas=3), 0.0, signer=SIGNER)
    targets: list[int] = []
    for number in range(30):
        forged.sequence = forged.arrived = number
        with control(server) as client:
            client.hset(demand_key(BOARD), "a", msgspec.json.encode(forged))
        targets.append(policy(context_of(1, {}))[0])
        time.sleep(0.1)
    watch = policy.watch
    assert watch is not None and watch.signals is not None and watch.decided is not None
    assert set(targets) == {1}


def test_the_replica_count_is_kept_until_something_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "keep", lambda self: None)
    policy = PoolAutoscaler(BOARD, NO_REDIS, fleet_of(), 0.0, signer=None)
    assert policy(context_of(2, {"mine": 1})) == (2, {"mine": 1})


def test_the_policy_answers_while_redis_is_unavailable() -> None:
    policy = PoolAutoscaler(BOARD, NO_REDIS, fleet_of(), 0.0, signer=None)
    deadline = time.monotonic() + 60
    while policy.watch is None or policy.watch.signals is None:  # until it has looked
        # five may be what gateways received since this was built, and three are its most
        assert policy(context_of(5, {}))[0] == 5
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # as Ray Serve does for each replica that it starts
    assert isinstance(pickle.loads(pickle.dumps(policy)), PoolAutoscaler)


def test_an_unused_autoscaling_policy_stops_its_thread() -> None:
    watch = Watch(BOARD, NO_REDIS, fleet_of(), keep_s=0.2)
    watch.keep()
    assert watch.is_alive
    deadline = time.monotonic() + 60
    while watch.is_alive:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    watch.keep_s = 10.0
    watch.keep()
    assert watch.is_alive


def test_warm_replicas_alone_do_not_change_the_replica_count() -> None:
    pool = {
        "model": "org/model",
        "replicas": 2,
        "warm_replicas": 1,
        "slo": {"interactive": {"ttft_s": 2.0}},
    }
    fleet = Fleet.model_validate({"name": "test", "pools": {"engine": pool}})
    limits = limits_of(fleet.pools["engine"])
    assert limits is not None
    assert (limits.min_replicas, limits.max_replicas, limits.warm_replicas) == (2, 3, 1)


def hgetalls(server: RedisProcess, watch: Watch, is_followed: Callable[[], bool]) -> float:
    """How many a watch sends in a period: one reads the slots with the loads, one the demand."""
    watch.keep()
    deadline = time.monotonic() + 60
    while not is_followed():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with control(server) as client:
        client.config_resetstat()
        began = time.monotonic()
        time.sleep(4 * autoscaler.READ_PERIOD_S)
        calls = client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"]
    # the first may be immediate
    return calls / ((time.monotonic() - began) / autoscaler.READ_PERIOD_S + 1)  # type: ignore[no-any-return]


def test_loads_are_read_only_together_with_demand(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running(tmp_path, port, f"port {port}") as server:
        watch = Watch(BOARD, server.url, fleet_of())
        assert 0 < hgetalls(server, watch, lambda: watch.signals is not None) <= 2


def test_only_the_settings_are_read_for_a_pool_without_autoscaling(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    pool = {"model": "org/model", "slo": {"interactive": {"ttft_s": 2.0}}}
    fixed = Fleet.model_validate({"name": "test", "pools": {"engine": pool}})
    with running(tmp_path, port, f"port {port}") as server:
        watch = Watch(BOARD, server.url, fixed)
        assert hgetalls(server, watch, lambda: watch.is_current) == 0
        watch.fleet = fleet_of()  # as settings may make it
        assert hgetalls(server, watch, lambda: watch.signals is not None) > 0
