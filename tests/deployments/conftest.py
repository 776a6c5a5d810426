"""One Redis for all tests of a module."""

from collections.abc import Iterator

import pytest

from tests.router.index_redis import control, server_of
from tests.router.redis_process import RedisProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with server_of("redis", tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(server: RedisProcess) -> str:
    """The server's, emptied."""
    with control(server) as client:
        client.flushall()
    return server.url
