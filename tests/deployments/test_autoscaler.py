"""The autoscaling policy inside a real Ray Serve, fed through a real Redis, without engines."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import ray
from ray import serve
from ray.serve.config import AutoscalingContext

from autoscaling.scaling import Signals
from common import loops
from deployments import autoscaler
from deployments.autoscaler import PoolAutoscaler, Watch, autoscaling_config, limits_of
from deployments.fleet.applications import settings_of
from deployments.fleet.fleet import Fleet
from router.active import active_key
from router.demand import DemandCounters, demand_key
from router.fleet_settings import GivenSettings, settings_key
from router.signature import Signer, signed
from tests.ports import free_ports
from tests.ray_cluster import start_ray
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess, running

ROOT = Path(__file__).parent.parent.parent
BOARD = "test/engine"
NO_REDIS = "redis://127.0.0.1:1/0"
RATE = 1000.0  # prompt tokens a second of one replica
PATIENCE_S = 120.0


def fleet_of(**autoscaling: Any) -> Fleet:
    pool = {
        "model": "org/model",
        "slo": {"interactive": {"ttft_s": 2.0}},
        "autoscaling": {"max_replicas": 3, "startup_s": 5.0, **autoscaling},
    }
    return Fleet.model_validate({"name": "test", "pools": {"engine": pool}})


def application(fleet: Fleet, redis_url: str) -> serve.Application:
    """Defined in a function: what is pickled by value needs no import in Ray's workers."""

    class Engine:
        """Claims a slot and publishes a load, as an engine does."""

        def __init__(self, redis_url: str) -> None:
            from router.cached_blocks import CachedBlocks
            from router.event_stream import EventBatch
            from router.load import ReplicaLoad
            from router.publisher import IndexPublisher, Lease
            from router.redis_client import connect
            from router.segment_keys import SegmentHasher

            replica_id: str = serve.get_replica_context().replica_id.unique_id
            started_at = time.time()

            def load(lease: Lease) -> str:
                return ReplicaLoad(
                    replica_id=replica_id,
                    slot=lease.slot,
                    incarnation=lease.incarnation,
                    url="http://nowhere",
                    node_ip="127.0.0.1",
                    waiting=0,
                    running=0,
                    queued_prefill_tokens=0,
                    kv_use=0.0,
                    kv_capacity_tokens=0,
                    prefill_rate=1000.0,
                    inter_token_latency=0.0,
                    started_at=started_at,
                    startup_s=1.0,
                ).to_json()

            async def nothing() -> Any:
                await asyncio.Event().wait()
                yield EventBatch([], False)

            held = CachedBlocks(SegmentHasher(b"k" * 32), "org/model", None, 128)
            self._publisher = IndexPublisher(connect(redis_url), "test/engine", held, load)
            self._nothing = nothing
            self._started = False

        async def check_health(self) -> None:
            if not self._started:
                self._publisher.start(self._nothing)
                self._started = True

        async def __del__(self) -> None:
            await self._publisher.stop()

    scaled = autoscaling_config(fleet, "engine", 0.0, redis_url, signer=None)
    deployment: Any = serve.deployment(
        name="engine",
        autoscaling_config=scaled,
        health_check_period_s=0.5,
        graceful_shutdown_timeout_s=2,
        ray_actor_options={"num_cpus": 0},
    )(Engine)
    built: serve.Application = deployment.bind(redis_url)
    return built


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT))
        start_ray()
        serve.start(proxy_location="Disabled")
        try:
            yield
        finally:
            ray.shutdown()


class Traffic:
    """What a gateway would tell: so many requests a second of so many prompt tokens."""

    def __init__(self, server: RedisProcess) -> None:
        self._server = server
        self._counters = DemandCounters()
        self._at = time.monotonic()

    def tell(self, requests_per_s: float, tokens: int, waiting: int = 0) -> None:
        now = time.monotonic()
        came = round(requests_per_s * (now - self._at))
        if came or not requests_per_s:
            self._at = now
        of = self._counters
        of.sequence += 1
        of.arrived += came
        of.prompt_tokens += came * tokens
        of.uncached_tokens += came * tokens
        of.waiting = waiting
        with control(self._server) as client:
            client.hset(demand_key(BOARD), "gateway", msgspec.json.encode(of))

    def until(self, done: Callable[[], bool], *args: Any) -> None:
        """Tell it again and again until something has become true."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, serve.status()
            self.tell(*args)
            time.sleep(0.25)


def replicas() -> int:
    states = serve.status().applications["default"].deployments["engine"].replica_states
    return sum(count for state, count in states.items() if state == "RUNNING")


def active(server: RedisProcess) -> int | None:
    with control(server) as client:
        value = client.get(active_key(BOARD))
    return int(value.split()[0]) if isinstance(value, bytes) else None


@pytest.mark.real
def test_replicas_follow_the_load_up_and_down_to_none_and_up_again(
    cluster: None, server: RedisProcess
) -> None:
    # Not three: from one to three at once is a surge, and what surged is held for minutes.
    fleet = fleet_of(min_replicas=0, max_replicas=2, downscale_hold_s=2.0, idle_s=4.0)
    serve.run(application(fleet, server.url), route_prefix=None)
    traffic = Traffic(server)
    # half of what one replica can do, then more than it can
    traffic.until(lambda: (active(server), replicas()) == (1, 1), 1.0, 500)
    traffic.until(lambda: replicas() == 2 and active(server) == 2, 4.0, 600)
    traffic.until(lambda: replicas() == 0 and active(server) == 0, 0.0, 0)
    traffic.until(lambda: replicas() >= 1, 0.0, 0, 1)


def context_of(replicas: int, state: dict[str, Any]) -> AutoscalingContext:
    context: Any = SimpleNamespace(
        current_num_replicas=replicas, target_num_replicas=replicas, policy_state=state
    )
    return context  # type: ignore[no-any-return]


def test_pools_share_a_budget_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler, "_GPU_REQUESTS", {})
    fleet = fleet_of(max_replicas=8)
    policies = [PoolAutoscaler(f"test/{name}", NO_REDIS, fleet, 4.0, signer=None) for name in "ab"]
    # five replicas of four GPUs each: who has least of its demand comes next
    assert policies[0]._granted(20.0, 1, demand=4, target=5) == 5
    assert policies[1]._granted(20.0, 1, demand=4, target=5) == 2
    assert policies[0]._granted(20.0, 1, demand=4, target=5) == 3
    # the other is gone, for nobody decides it any more
    _, request = autoscaler._GPU_REQUESTS["test"]["b"]
    autoscaler._GPU_REQUESTS["test"]["b"] = (time.monotonic() - 2 * autoscaler.KEEP_S, request)
    assert policies[0]._granted(20.0, 1, demand=4, target=5) == 5


@pytest.mark.parametrize("on_the_board", [1, 2, 3])
def test_engines_that_are_replaced_are_not_taken_for_more(
    on_the_board: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are wanted: one has not left the board, one has not come up, or both are there."""
    monkeypatch.setattr(Watch, "keep", lambda self: None)
    policy = PoolAutoscaler(BOARD, NO_REDIS, fleet_of(), 0.0, signer=None)
    policy._watch = watch = Watch(BOARD, NO_REDIS, fleet_of(), is_current=True)
    watch.signals = Signals(now=time.monotonic(), running=on_the_board)
    context: Any = SimpleNamespace(current_num_replicas=1, target_num_replicas=2, policy_state={})
    assert policy(context)[0] == 2


def test_what_cannot_be_decided_leaves_the_number_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Watch, "keep", lambda self: None)
    monkeypatch.setattr(autoscaler, "DECIDE_PERIOD_S", 0.0)
    policy = PoolAutoscaler(BOARD, NO_REDIS, fleet_of(), 0.0, signer=None)
    policy._watch = watch = Watch(BOARD, NO_REDIS, fleet_of(), is_current=True)
    watch.signals = Signals(now=time.monotonic(), running=2)
    (target, state), failed = policy(context_of(2, {})), loops.failures["autoscaler"]
    assert target == 2 and state
    with monkeypatch.context() as patch:
        patch.setattr(autoscaler, "decide", lambda *_: math.sqrt(-0.05))
        for _ in range(3):
            assert policy(context_of(2, state)) == (2, {})
    assert loops.failures["autoscaler"] == failed + 3
    assert sum("undecided" in record.message for record in caplog.records) == 1
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
    """Nor those that somebody signs who knows the secret, as an engine does."""
    key = settings_key("test")
    with control(server) as client:
        client.flushall()
        client.set(key, signed(signer, key, settings_text(**huge)))
    policy = PoolAutoscaler(BOARD, server.url, fleet_of(max_replicas=3), 0.0, signer=SIGNER)
    targets: list[int] = []
    deadline = time.monotonic() + 60
    while len(targets) < 20 or policy._watch is None or not policy._watch.is_current:
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
    watch = policy._watch
    assert watch is not None and watch.signals is not None and watch.decided is not None
    assert set(targets) == {1}


def test_before_anything_is_read_the_number_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "keep", lambda self: None)
    policy = PoolAutoscaler(BOARD, NO_REDIS, fleet_of(), 0.0, signer=None)
    assert policy(context_of(2, {"mine": 1})) == (2, {"mine": 1})


def test_the_policy_answers_while_redis_is_away() -> None:
    policy = PoolAutoscaler(BOARD, NO_REDIS, fleet_of(), 0.0, signer=None)
    deadline = time.monotonic() + 60
    while policy._watch is None or policy._watch.signals is None:  # until it has looked
        # five may be what gateways were told since this was built, and three are its most
        assert policy(context_of(5, {}))[0] == 5
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # as Ray Serve does for each replica that it starts
    assert isinstance(pickle.loads(pickle.dumps(policy)), PoolAutoscaler)


def test_a_policy_that_is_not_asked_any_more_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler, "KEEP_S", 0.2)
    watch = Watch(BOARD, NO_REDIS, fleet_of())
    watch.keep()
    assert watch.is_alive
    deadline = time.monotonic() + 60
    while watch.is_alive:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    monkeypatch.setattr(autoscaler, "KEEP_S", 10.0)
    watch.keep()
    assert watch.is_alive


def test_warm_replicas_alone_leave_the_number_as_it_is() -> None:
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
    # the first may come at once
    return calls / ((time.monotonic() - began) / autoscaler.READ_PERIOD_S + 1)  # type: ignore[no-any-return]


def test_loads_are_read_when_demand_is_and_not_between(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running(tmp_path, port, f"port {port}") as server:
        watch = Watch(BOARD, server.url, fleet_of())
        assert 0 < hgetalls(server, watch, lambda: watch.signals is not None) <= 2


def test_of_a_pool_that_is_not_scaled_only_the_settings_are_read(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    pool = {"model": "org/model", "slo": {"interactive": {"ttft_s": 2.0}}}
    fixed = Fleet.model_validate({"name": "test", "pools": {"engine": pool}})
    with running(tmp_path, port, f"port {port}") as server:
        watch = Watch(BOARD, server.url, fixed)
        assert hgetalls(server, watch, lambda: watch.is_current) == 0
        watch.fleet = fleet_of()  # as settings may make it
        assert hgetalls(server, watch, lambda: watch.signals is not None) > 0
