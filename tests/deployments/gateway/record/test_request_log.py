"""One line for each request, however it ended, and nowhere a word of its prompt."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from autoscaling.admission.pool_scheduler import PoolScheduler
from deployments.gateway.pool import scheduling
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.prompt_reader import PromptReader
from deployments.gateway.record.request_log import MESSAGE
from deployments.process.serve_log import JsonLines
from tests.deployments.gateway.endings import SECRET, WAYS, Ask
from tests.fakes.collector import Collector, collector
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import TENANT, Front, gateway_before
from tests.waiting import until

QUOTE = f"cannot read {SECRET}"


class Log:
    """All that any logger of the process says, as a gateway would write it."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self.handler = logging.StreamHandler(self._text)
        self.handler.setFormatter(JsonLines({"component": "gateway"}))

    @property
    def text(self) -> str:
        return self._text.getvalue()

    @property
    def requests(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in lines if line["message"] == MESSAGE]


@pytest.fixture
def log() -> Iterator[Log]:
    log, root, serves = Log(), logging.getLogger(), logging.getLogger("ray.serve")
    loggers = [root] if serves.propagate else [root, serves]
    level = root.level
    root.setLevel(logging.INFO)
    for logger in loggers:
        logger.addHandler(log.handler)
    yield log
    root.setLevel(level)
    for logger in loggers:
        logger.removeHandler(log.handler)


@pytest.fixture
async def span_collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    async with collector() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r1")


@pytest.fixture
async def front(log: Log, span_collector: Collector, engine: FakeEngine) -> AsyncIterator[Front]:
    async with gateway_before(engine, max_body_bytes=2000, request_timeout_s=60.0) as front:
        yield front


async def test_a_log_line_states_the_outcome_of_a_request(front: Front, log: Log) -> None:
    async with front.post(headers={"x-request-id": "mine"}, max_tokens=3, stream=True) as answer:
        await answer.read()
    await until(lambda: log.requests)
    (line,) = log.requests
    assert line["level"] == "INFO"
    assert line["component"] == "gateway"
    assert line["request_id"] == "mine"
    assert (line["tenant"], line["pool"], line["model"]) == (TENANT, "main", MODEL)
    assert (line["priority"], line["verdict"]) == ("interactive", "admitted")
    assert (line["served_by_pool"], line["served_by_replica"]) == ("main", "r1")
    assert (line["status"], line["outcome"]) == (200, "ok")
    assert line["prompt_tokens"] == 1
    assert 0 < line["ttft_s"] <= line["duration_s"]
    assert "error" not in line


async def test_the_line_of_a_failed_request_has_its_last_replica_and_its_stage(
    front: Front, log: Log, engine: FakeEngine
) -> None:
    engine.pauses_after = 0
    async with front.post(headers={"x-antefix-timeout": "0.4"}) as answer:
        assert answer.status == 504
    await until(lambda: log.requests)
    (line,) = log.requests
    assert (line["status"], line["outcome"], line["stage"]) == (504, "deadline", "engine")
    assert line["served_by_replica"] == "r1"


async def test_an_error_answer_has_the_request_id_of_its_log_line(front: Front, log: Log) -> None:
    async with front.post(model="no-such") as answer:
        assert answer.status == 404
    await until(lambda: log.requests)
    (line,) = log.requests
    assert answer.headers["x-request-id"] == line["request_id"]


async def test_the_answer_to_a_gateway_failure_has_the_request_id_of_its_log_line(
    front: Front, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(QUOTE)

    monkeypatch.setattr(GatewayPool, "read", broken)
    async with front.post() as answer:
        assert answer.status == 500
        assert answer.headers.getall("x-request-id") == [answer.headers["x-request-id"]]
    await until(lambda: log.requests)
    (line,) = log.requests
    assert answer.headers["x-request-id"] == line["request_id"]


@pytest.mark.parametrize(("way", "outcome", "error"), WAYS, ids=[way.__name__ for way, *_ in WAYS])
async def test_a_request_has_one_log_line_and_no_line_or_span_contains_its_prompt(
    front: Front,
    log: Log,
    span_collector: Collector,
    engine: FakeEngine,
    way: Ask,
    outcome: str,
    error: str,
) -> None:
    await way(front, engine)
    await until(lambda: log.requests)
    (line,) = log.requests
    assert (line["outcome"], line.get("error", "")) == (outcome, error)
    if "pool" in line:  # otherwise it is of no pool's, and has no spans
        await until(lambda: any(span.name == "gateway" for span in span_collector.spans))
    assert SECRET not in log.text
    assert SECRET.encode() not in b"".join(span_collector.raw)


def fails(*_: Any, **__: Any) -> Any:
    raise ValueError(QUOTE)


@pytest.mark.parametrize(
    ("part", "method", "status", "outcome"),
    [
        (PromptReader, "read", 200, "ok"),
        (scheduling, "schedule", 500, "failed"),
        (PoolScheduler, "consider", 200, "ok"),
        (PoolScheduler, "decide", 200, "ok"),
    ],
)
async def test_prompts_quoted_by_a_gateway_fault_are_in_no_line_or_span(
    front: Front,
    log: Log,
    span_collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    part: object,
    method: str,
    status: int,
    outcome: str,
) -> None:
    monkeypatch.setattr(part, method, fails)
    async with front.post(messages=[{"role": "user", "content": SECRET}]) as answer:
        assert answer.status == status
        await answer.read()
    await until(lambda: log.requests and "exception" in log.text)
    assert [line["outcome"] for line in log.requests] == [outcome]
    assert "builtins.ValueError" in log.text
    assert "cannot read" not in log.text
    assert SECRET not in log.text
    assert SECRET.encode() not in b"".join(span_collector.raw)


async def test_no_log_line_contains_a_key(front: Front, log: Log) -> None:
    wrong = {"authorization": f"Bearer {SECRET}"}
    async with front.post(headers=wrong) as answer:
        assert answer.status == 401
    async with front.post() as answer:
        await answer.read()
    await until(lambda: log.requests)
    assert SECRET not in log.text
    assert front.headers["authorization"].removeprefix("Bearer ") not in log.text


async def test_a_failure_during_a_request_is_logged_with_the_request_id(
    front: Front, log: Log, engine: FakeEngine
) -> None:
    engine.dies_after = 0
    async with front.post(headers={"x-request-id": "mine"}) as answer:
        assert answer.status == 503
    lines = [json.loads(line) for line in log.text.splitlines()]
    warned = [line for line in lines if " failed on " in line["message"]]
    assert [line["request_id"] for line in warned] == ["mine", "mine"]


async def test_a_client_that_leaves_during_its_upload_is_logged_in_one_line(
    front: Front, log: Log
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
    head = "POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: 1000\r\n"
    headers = {**front.headers, "content-type": "application/json", "x-request-id": "left-early"}
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(head.encode() + b"\r\n{")
    state = front.gateway.server.state
    await until(lambda: state.tasks)
    writer.close()
    await until(lambda: not state.tasks)
    told = [json.loads(line) for line in log.text.splitlines()]
    (line,) = [line for line in told if line.get("request_id") == "left-early"]
    assert line["message"] == MESSAGE
    assert not [line for line in told if "exception" in line or line["level"] == "ERROR"]
