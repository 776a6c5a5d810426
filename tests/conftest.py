"""Settings of every test, one Redis for all tests of a module, and what was skipped."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import missing, programs
from tests.router.index_redis import control, server_of
from tests.router.redis_process import RedisProcess

# A busy machine is slow, not wrong. Laws that want a share of these examples take
# `settings().max_examples // n`, so that `make fuzz` gives them more too.
settings.register_profile(
    "same",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=50,
    derandomize=True,
)
# Of Hypothesis's own default, which does not look at CI: random, and what failed is tried again.
settings.register_profile(
    "fuzz",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=1000,
    print_blob=True,
)
settings.load_profile("same")


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if programs.find("libnuma.so.1") or os.environ.get("CI"):
        return
    why = f"vLLM needs libnuma.so.1, which is not installed ({programs.remedy('libnuma.so.1')})"
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker of several
        return
    reasons = (report.longrepr[2] for report in reporter.stats.get("skipped", ()))
    missing.note(Counter(reason.removeprefix("Skipped: ") for reason in reasons))
