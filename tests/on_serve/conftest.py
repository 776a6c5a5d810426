"""One Ray with Ray Serve for all tests of this folder; each module leaves it empty.

The fixtures belong to this package: Ray ends after its last test, not at the end of the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray import serve

from tests.fakes.engine import SECRET
from tests.ray_cluster import start_ray
from tests.router.index_redis import control, server_of
from tests.router.redis_process import RedisProcess

ROOT = Path(__file__).parents[2]
KEY = "sk-test-of-a-fleet"
# A busy machine is slow, not wrong.
PATIENCE_S = 300.0


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """The Redis of every fleet here."""
    with server_of("redis", tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="package")
def ray_serve(server: RedisProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its processes have the environment of a fleet."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT))
        # otherwise its processes starve next to the engines of other tests
        environment.setenv("RAY_worker_niceness", "0")
        environment.setenv("ANTEFIX_API_KEYS", f"tenant={KEY}")
        environment.setenv("ANTEFIX_ENGINE_SECRET", SECRET)
        environment.setenv("ANTEFIX_REDIS_URL", server.url)
        environment.setenv("ANTEFIX_METRICS_FOLDER", str(tmp_path_factory.mktemp("metrics")))
        start_ray(namespace="serve")
        try:
            serve.start(proxy_location="Disabled")
            yield
        finally:
            ray.shutdown()  # serve.shutdown would wait 20 s for graceful ends


@pytest.fixture(scope="module")
def empty_serve(ray_serve: None, server: RedisProcess) -> Iterator[None]:
    """Ray Serve and Redis as no module has used them."""
    yield
    for name in serve.status().applications:
        serve.delete(name, _blocking=False)
    eventually(lambda: not serve.status().applications)
    with control(server) as client:
        client.flushall()


def eventually(truth: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    """Raises AssertionError with `what` there is when it has not become true in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)
