"""A real gateway on a separate port, in front of fake engines, without Ray.

Without Redis the test says what is on the board; with one the engines publish it themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import aiohttp
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deployments.fleet.applications import settings_of
from deployments.fleet.fleet import Fleet
from deployments.gateway.gateway import Gateway
from deployments.gateway.gateway_parts import Secrets
from deployments.gateway.intake.keys_file import stored
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.wire.field_table import taken_by
from router.board.load import LoadBoard
from router.redis.redis_keys import fleet_id
from tests.fakes import publishing
from tests.fakes.engine import MODEL, SECRET, FakeEngine
from tests.fakes.publishing import MODEL_PATH, Publishing
from tests.fakes.serve_handle import FakeHandle
from tests.ports import free_ports
from tests.waiting import until

KEY, OTHER_KEY = "sk-test", "sk-other"
TENANT, OTHER_TENANT = publishing.TENANT, "other"
FLEET = "test"
REDIS_NAME = f"{FLEET}.{fleet_id(SECRET)}"
POOL = f"{REDIS_NAME}/main"
NO_REDIS = "redis://127.0.0.1:1/0"


class _Gateway(Gateway):
    """Ends on request; Python cannot await the `__del__` that Ray Serve awaits.

    The tests' process is not its own: it counts in memory, and leaves the logs alone.
    """

    def _own_process(self) -> None:
        pass

    def __del__(self) -> None:  # type: ignore[override]
        pass


class Front:
    """`url` is the gateway's; `http` a client without a key; `handle` what stands for Serve.

    `published`: replica id -> what that engine publishes, where there is a Redis.
    """

    def __init__(self, gateway: Gateway, url: str, handle: FakeHandle) -> None:
        self.gateway = gateway
        self.url = url
        self.handle = handle
        self.headers = {"authorization": f"Bearer {KEY}"}
        self.http = aiohttp.ClientSession()
        self.published: dict[str, Publishing] = {}

    @property
    def pool(self) -> GatewayPool:
        return self.pools["main"]

    @property
    def pools(self) -> Mapping[str, GatewayPool]:
        return self.gateway.parts.pools.by_name

    def sees(self, *engines: FakeEngine, pool: str = "main") -> None:
        """Put the engines on the board, the first with the shortest queue; none: forget all.

        Later reports of the engines do not change that.
        """
        self.sees_queues({engine: 1000 * i for i, engine in enumerate(engines)}, pool)

    def sees_queues(self, tokens: Mapping[FakeEngine, int], pool: str = "main") -> None:
        """Put the engines on the board, each with N prompt tokens queued."""
        board, reader = self.pools[pool].scheduler.board, self.pools[pool].feeds.loads
        loads = [engine.load(queued) for engine, queued in tokens.items()]
        board.update(loads)
        reader._readable = lambda leases: loads  # type: ignore[method-assign]
        # what a test has said stays so, however long busy cores make it wait
        board._read_at = float("inf")
        if not tokens:
            board._last_known = {}

    def goes_blind(self) -> None:
        """Redis has not answered for longer than the pool's leases last."""
        self.pool.scheduler.board._read_at = float("-inf")

    def post(
        self, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        """A request with the key, and with a chat where the path takes one."""
        chat = {"messages": [{"role": "user", "content": "hello"}]}
        fields = {"model": MODEL, **(chat if "messages" in taken_by(path) else {}), **body}
        return self.http.post(
            self.url + path, json=fields, headers={**self.headers, **(headers or {})}
        )

    def post_canary(self, action: str, headers: dict[str, str] | None = None) -> Any:
        """An operator's word on the canary of the model `assistant`."""
        path = f"/antefix/canaries/assistant?action={action}"
        return self.http.post(self.url + path, headers=headers or self.headers)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Any:
        return self.http.get(self.url + path, headers={**self.headers, **(headers or {})})

    async def explanation_of(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Why the request with this answer went where it went, once that can be asked for."""
        path = f"/antefix/requests/{headers['x-request-id']}"
        async with asyncio.timeout(60):
            while True:
                async with self.get(path) as told:
                    if told.status == 200:
                        explanation: dict[str, Any] = await told.json()
                        return explanation
                    assert told.status in (404, 503)  # not yet, or Redis took too long
                await asyncio.sleep(0.01)

    async def metrics(self) -> dict[tuple[str, ...], float]:
        """As `samples_of`, of the pool `main`."""
        self.gateway.refresh_metrics({})
        return self.counted()

    def counted(self) -> dict[tuple[str, ...], float]:
        """As `metrics`, as far as the gateway has brought them up to date by itself."""
        return samples_of(generate_latest(self.gateway.parts.families.registry).decode(), "main")

    def accepts(self, keys: Mapping[str, str]) -> None:
        """These keys, with their tenants, in addition to its first ones, whose tenants may change
        too."""
        with NamedTemporaryFile("w") as file:
            file.writelines(stored(tenant, key).line() + "\n" for key, tenant in keys.items())
            file.flush()
            self.gateway.parts.keys.take(Path(file.name))
        assert not self.gateway.parts.keys.stale


def samples_of(exposition: str, pool: str | None = None) -> dict[tuple[str, ...], float]:
    """(name, its label values but the pool, in the order of their names) -> value.

    Only of that pool, and those of none; None: of the only one.
    """
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "pool")): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if pool is None or sample.labels.get("pool", pool) == pool
    }


@asynccontextmanager
async def gateway_before(
    *engines: FakeEngine,
    redis_url: str = NO_REDIS,
    pool: Mapping[str, Any] | None = None,
    lookup_budget_ms: float = 5.0,
    small: FakeEngine | None = None,
    small_pool: Mapping[str, Any] | None = None,
    starts_engines: bool = True,
    models: Mapping[str, Any] | None = None,
    **limits: Any,
) -> AsyncIterator[Front]:
    """One gateway of a fleet; a second one of the same finds its engines started.

    `pool`, `models` and `limits` are settings of the fleet file's pool, `models` and `gateway`.

    `small` is the only engine of a second pool of that name, where the first may overflow to.
    `small_pool`: settings of that pool.
    TENANT is an operator, unless `tenants` says otherwise.
    """
    (port,) = free_ports(1)
    limits.setdefault("tenants", {TENANT: {"operator": True}})
    pools = {"main": {"model": MODEL_PATH, "served_model_name": MODEL, **(pool or {})}}
    handles = {"main": FakeHandle(*engines)}
    if small is not None:
        pools["small"] = {**_pool_of(small), **(small_pool or {})}
        handles["small"] = FakeHandle(small)
    every = [*engines, *([small] if small else [])]
    own = every if starts_engines else []
    settings = {
        "name": FLEET,
        "gateway": {"port": port, **limits},
        "redis": {"lookup_budget_ms": lookup_budget_ms},
        "pools": pools,
        "models": models or {},
    }
    fleet = Fleet.model_validate(settings).with_secret(SECRET)
    keys = {KEY: TENANT, OTHER_KEY: OTHER_TENANT}
    secrets = Secrets(api_keys=keys, engine_secret=SECRET, redis_url=redis_url)
    gateway = object.__new__(_Gateway)
    await asyncio.gather(*(engine.start() for engine in own))
    await gateway.__init__(fleet, secrets, handles.__getitem__)  # type: ignore[misc]
    await gateway.reconfigure(settings_of(fleet.model_dump(mode="json")))
    await gateway.check_health()
    front = Front(gateway, f"http://127.0.0.1:{port}", handles["main"])
    try:
        if redis_url == NO_REDIS:
            front.sees(*engines)
            if small is not None:
                front.sees(small, pool="small")
        else:
            await _publish(front, engines, redis_url)
            if small is not None:
                await _publish(front, [small], redis_url, "small")
        yield front
    finally:
        await front.http.close()
        await asyncio.gather(*(published.stop() for published in front.published.values()))
        await asyncio.gather(*(engine.stop() for engine in own), Gateway.__del__(gateway))


def _pool_of(small: FakeEngine) -> dict[str, Any]:
    """Settings of a pool that the first may overflow to."""
    return {
        "model": "another/model",
        "served_model_name": small.model,
        "engine_args": {"max_model_len": 1000},
    }


async def _publish(
    front: Front, engines: Sequence[FakeEngine], redis_url: str, pool: str = "main"
) -> None:
    """Each in its order, so that the first has the lowest slot."""
    board, name = front.pools[pool].scheduler.board, f"{REDIS_NAME}/{pool}"
    for count, engine in enumerate(engines):
        front.published[engine.replica_id] = published = Publishing(engine, redis_url, name)
        published.start()
        await until(partial(_has_more_than, board, count))


def _has_more_than(board: LoadBoard, count: int) -> bool:
    return len(board.loads()) > count
