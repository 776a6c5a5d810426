"""One Redis for all tests of a module, emptied before each of them."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from router.board import active, fleet_settings
from router.board import pool_demand as demand
from router.index import slots
from router.redis.redis_client import AsyncRedis
from tests.router.index_lookups import PATIENT_S
from tests.router.index_redis import PATIENCE_S, client_of, control, server_of
from tests.router.redis_process import RedisProcess


@pytest.fixture(scope="module")
def topology() -> str:
    """What `shared` is; a module whose tests hold for every topology has its own, with `params`."""
    return "redis"


@pytest.fixture(scope="module")
def shared(topology: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with server_of(topology, tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_timeout(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long Redis may take, in seconds: at first enough that no busy core is an outage."""

    def set_to(seconds: float) -> None:
        for module in (active, demand, fleet_settings, slots):
            monkeypatch.setattr(module, "REDIS_TIMEOUT_S", seconds)

    set_to(PATIENCE_S)
    return set_to


@pytest.fixture
def server(shared: RedisProcess) -> RedisProcess:
    with control(shared) as client:
        client.flushall()
    return shared


@pytest.fixture
async def redis(server: RedisProcess, topology: str) -> AsyncIterator[AsyncRedis]:
    async with client_of(server, topology) as client:
        yield client


@pytest.fixture
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may take the time of a lookup: on busy cores that is no sign of anything."""
    monkeypatch.setattr("router.index.index.CONNECT_TIMEOUT_S", PATIENT_S)
