"""The autoscaling policy inside a real Ray Serve, fed through a real Redis, without engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from ray import serve

from deployments.autoscaler import autoscaling_config
from deployments.fleet.fleet import Fleet
from router.board.active import active_key
from router.board.pool_demand import DemandCounters, demand_key
from tests.deployments.test_autoscaler import BOARD, fleet_of
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PATIENCE_S = 120.0


def engine() -> type:
    """Defined in a function: what is pickled by value needs no import in Ray's workers."""

    class Engine:
        """Claims a slot and publishes a load, as an engine does."""

        def __init__(self, redis_url: str) -> None:
            from router.board.load import EnginePace, ReplicaCache, ReplicaLoad, ReplicaQueue
            from router.index.cached_blocks import CachedBlocks
            from router.index.event_stream import EventBatch
            from router.index.publisher import IndexPublisher, Lease
            from router.index.segment_keys import SegmentHasher
            from router.redis.redis_client import connect

            replica_id: str = serve.get_replica_context().replica_id.unique_id
            started_at = time.time()

            def load(lease: Lease) -> str:
                return ReplicaLoad(
                    replica_id=replica_id,
                    slot=lease.slot,
                    incarnation=lease.incarnation,
                    url="http://nowhere",
                    node_ip="127.0.0.1",
                    started_at=started_at,
                    startup_s=1.0,
                    queue=ReplicaQueue(
                        waiting=0,
                        running=0,
                        prefill_tokens=0,
                    ),
                    cache=ReplicaCache(
                        use=0.0,
                        capacity_tokens=0,
                    ),
                    pace=EnginePace(
                        prefill_rate=1000.0,
                        inter_token_latency=0.0,
                    ),
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

    return Engine


def application(fleet: Fleet, redis_url: str) -> serve.Application:
    scaled = autoscaling_config(fleet, "engine", 0.0, redis_url, signer=None)
    deployment: Any = serve.deployment(
        name="engine",
        autoscaling_config=scaled,
        health_check_period_s=0.5,
        graceful_shutdown_timeout_s=2,
        ray_actor_options={"num_cpus": 0},
    )(engine())
    built: serve.Application = deployment.bind(redis_url)
    return built


class Traffic:
    """What a gateway would report: N requests a second of N prompt tokens."""

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
        """Report it again and again until a condition has become true."""
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


def test_replicas_follow_the_load_up_then_down_to_zero_and_up_again(
    empty_serve: None, server: RedisProcess
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
