"""Settings of every test, one Redis for all tests of a module, and what was skipped."""

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import compress, product
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from hypothesis import HealthCheck, settings

from deployments.models.model import embedded_model
from tests import missing, programs, progress
from tests.router.index_redis import control, server_of
from tests.router.redis_process import RedisProcess
from tests.warm_python import program as warm
from weights.speculation.drafts import first_layers

# A busy machine is slow, not wrong. Properties that need a share of these examples take
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


# Those that a test has because its file says so; Hypothesis, for one, gives others.
OUR_MARKS = {"real", "cluster", "core", "kubernetes", "kubernetes_long"}


@pytest.fixture(scope="module", autouse=True)
def _assert_no_gateway_environment() -> Iterator[None]:
    """What a gateway sets for its process, later tests' engines would inherit: they would add to
    each other's counters."""
    yield
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ, "run the gateway in another process"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with server_of("redis", tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's first layers, for what is not about answers: they are gibberish."""
    folder = tmp_path_factory.mktemp("models") / "small"
    first_layers(embedded_model(lambda fraction, what: None), 4, folder)
    return folder


@pytest.fixture(scope="session")
def warm_python() -> Iterator[str]:
    """A program that does what Python does, and has imported vLLM already."""
    with warm.running(*warm.VLLM) as program:
        yield program


@pytest.fixture(scope="module")
def warm_executable(warm_python: str) -> Iterator[None]:
    """What our own code starts as its Python is the warm one: each `OfflineEngine`, above all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_python)
        yield


@pytest.fixture
def redis_url(server: RedisProcess) -> str:
    """The server's, emptied."""
    with control(server) as client:
        client.flushall()
    return server.url


def pytest_configure(config: pytest.Config) -> None:
    progress.note_if_asked(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file is left out where `-m` asks for none of its tests: some import vLLM, or other slow
    packages."""
    asked = config.option.markexpr
    if not asked or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    has = set(re.findall(r"mark\.(\w+)", " ".join(re.findall(r"^pytestmark = .*", text, re.M))))
    names = set(re.findall(r"\w+", asked)) - {"and", "or", "not"} - has
    may_have = [name for name in names if name not in OUR_MARKS or f"mark.{name}" in text]
    expression = Expression.compile(asked)

    def may_be_meant(given: tuple[bool, ...]) -> bool:
        marks = has | set(compress(may_have, given))

        def has_mark(name: str, /, **_: str | int | bool | None) -> bool:
            return name in marks

        return expression.evaluate(has_mark)

    return None if any(map(may_be_meant, product((False, True), repeat=len(may_have)))) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if programs.find("libnuma.so.1") or os.environ.get("CI"):
        return
    why = f"vLLM needs libnuma.so.1, which is not installed ({programs.remedy('libnuma.so.1')})"
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_collection_finish() -> None:
    # a tenth of the time of fast tests went into collections that pass over all that was imported
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):  # a worker of several
        return
    reasons = (report.longrepr[2] for report in reporter.stats.get("skipped", ()))
    missing.note(Counter(reason.removeprefix("Skipped: ") for reason in reasons))
