"""The spans of requests: a real gateway before fake engines, a collector there or away."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from observability.traces.request_record import CONTEXT_HEADERS
from observability.traces.tracing import Collector as Destination
from observability.traces.tracing import collector_of, engine_environment
from tests.fakes.collector import Collector, collector
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import until

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CLIENT[:-1] + "0"
BOTH = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
async def span_collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    async with collector() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def first() -> FakeEngine:
    return FakeEngine("r1")


@pytest.fixture
def second() -> FakeEngine:
    return FakeEngine("r2")


@pytest.fixture
async def front(
    span_collector: Collector, first: FakeEngine, second: FakeEngine
) -> AsyncIterator[Front]:
    async with gateway_before(first, second, request_timeout_s=60.0) as front:
        yield front


async def test_a_request_has_a_span_of_the_gateway_the_placement_and_the_engine(
    front: Front, span_collector: Collector
) -> None:
    async with front.post(headers={"traceparent": CLIENT}, stream=True) as answer:
        await answer.read()
    await until(lambda: len(span_collector.spans) == 3)
    gateway, placement, engine = map(span_collector.of, ("gateway", "placement", "engine"))
    assert {span.trace_id for span in span_collector.spans} == {CLIENT[3:35]}
    assert gateway.parent_id == CLIENT[36:52]
    assert placement.parent_id == engine.parent_id == gateway.span_id
    assert (gateway.kind, engine.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    assert gateway.began <= placement.began <= placement.ended <= engine.began
    assert engine.ended <= gateway.ended
    assert {span.service for span in span_collector.spans} == {"antefix-gateway"}
    assert not any(span.failed for span in span_collector.spans)


async def test_the_spans_show_where_a_request_went_and_its_times(
    front: Front, span_collector: Collector, first: FakeEngine
) -> None:
    first.cached_tokens = 1
    async with front.post(headers={"x-request-id": "mine"}, max_tokens=3, stream=True) as answer:
        await answer.read()
    await until(lambda: len(span_collector.spans) == 3)
    gateway, placement, engine = (
        span_collector.of(name).attributes for name in ("gateway", "placement", "engine")
    )
    assert gateway["antefix.request_id"] == "mine"
    assert gateway["antefix.outcome"] == "ok"
    assert gateway["gen_ai.request.model"] == MODEL
    assert gateway["gen_ai.operation.name"] == "chat"
    assert gateway["http.response.status_code"] == 200
    assert placement["antefix.policy"]
    assert placement["antefix.candidates"] == 2
    assert placement["antefix.verdict"] == "admitted"
    assert placement["antefix.chosen_replica"] == "r1"
    assert placement["antefix.predicted_ttft_s"] > 0
    assert placement["antefix.cached_tokens_predicted"] == 0
    assert engine["antefix.replica"] == "r1"
    assert engine["gen_ai.usage.input_tokens"] == 1
    assert engine["gen_ai.usage.cache_read.input_tokens"] == 1
    assert 0 <= engine["gen_ai.response.time_to_first_chunk"] <= gateway["antefix.ttft_s"]


async def test_the_engine_receives_the_span_of_its_attempt(
    front: Front, span_collector: Collector, first: FakeEngine
) -> None:
    headers = {"traceparent": CLIENT, "tracestate": "vendor=1"}
    async with front.post(headers=headers) as answer:
        await answer.read()
    await until(lambda: len(span_collector.spans) == 3)
    engine = span_collector.of("engine")
    assert first.headers[-1]["traceparent"] == f"00-{engine.trace_id}-{engine.span_id}-01"
    assert first.headers[-1]["tracestate"] == "vendor=1"


async def test_each_attempt_has_its_span_and_the_one_that_failed_says_so(
    front: Front, span_collector: Collector, first: FakeEngine
) -> None:
    first.dies_after = 0
    async with front.post() as answer:
        assert answer.status == 200
    await until(lambda: len(span_collector.spans) == 4)
    attempts = {
        span.attributes["antefix.replica"]: span
        for span in span_collector.spans
        if span.name == "engine"
    }
    assert attempts["r1"].failed
    assert attempts["r1"].attributes["error.type"] == "engine_unavailable"
    assert "gen_ai.usage.input_tokens" not in attempts["r1"].attributes
    assert not attempts["r2"].failed
    assert not span_collector.of("gateway").failed


async def test_the_trace_of_a_refused_request_ends_with_its_placement(
    front: Front, span_collector: Collector
) -> None:
    async with front.post(headers={"x-antefix-policy": "none"}) as answer:
        assert answer.status == 400
    await until(lambda: len(span_collector.spans) == 2)
    gateway, placement = span_collector.of("gateway"), span_collector.of("placement")
    assert gateway.attributes["error.type"] == "unknown_policy"
    assert placement.attributes["error.type"] == "unknown_policy"
    assert not gateway.failed, "the client's own fault is no error of the server's"


async def test_a_missed_deadline_is_an_error_of_the_gateway(
    front: Front, span_collector: Collector, first: FakeEngine
) -> None:
    first.pauses_after = 1
    async with front.post(headers={"x-antefix-timeout": "2"}) as answer:
        assert answer.status == 504
    await until(lambda: len(span_collector.spans) == 3)
    assert span_collector.of("gateway").failed
    assert span_collector.of("gateway").attributes["error.type"] == "deadline_exceeded"
    assert span_collector.of("engine").attributes["error.type"] == "cancelled"


async def test_an_unsampled_request_has_no_spans_and_its_context_is_passed_on(
    front: Front, span_collector: Collector, first: FakeEngine
) -> None:
    async with front.post(headers={"traceparent": UNSAMPLED}) as answer:
        await answer.read()
    async with front.post(headers={"traceparent": CLIENT}) as answer:
        await answer.read()
    await until(lambda: len(span_collector.spans) == 3)
    assert first.headers[0]["traceparent"].startswith(UNSAMPLED[:36])
    assert first.headers[0]["traceparent"].endswith("-00")


@pytest.mark.parametrize("headers", [{}, {"traceparent": CLIENT, "tracestate": "vendor=1"}])
async def test_without_tracing_the_engine_gets_the_clients_own_context(
    first: FakeEngine, headers: dict[str, str]
) -> None:
    async with gateway_before(first) as front, front.post(headers=headers) as answer:
        assert answer.status == 200
    got = {name: first.headers[-1][name] for name in CONTEXT_HEADERS if name in first.headers[-1]}
    assert got == headers


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
async def test_an_unreachable_collector_costs_a_request_nothing(
    first: FakeEngine, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    async with gateway_before(first) as front:
        for _ in range(20):
            async with front.post() as answer:
                assert answer.status == 200
                await answer.read()


def test_without_tracing_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys\n"
        "from observability.traces.tracing import tracing_of\n"
        "tracing_of({}, '1').request({}, 0.0)\n"
        "print(*[name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({**BOTH, "OTEL_SDK_DISABLED": "true"}, None),
        (BOTH, Destination("http://a:4318/v1/traces", "http/protobuf")),
        ({**BOTH, "OTEL_EXPORTER_OTLP_PROTOCOL": ""}, Destination("http://a:4318", "grpc")),
        (
            {**BOTH, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b/own"},
            Destination("http://b/own", "http/protobuf"),
        ),
        (
            {**BOTH, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            Destination("http://a:4318", "grpc"),
        ),
        ({**BOTH, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, None),
    ],
)
def test_the_environment_sets_the_destination_of_spans(
    environment: dict[str, str], expected: Destination | None
) -> None:
    assert collector_of(environment) == expected


def test_an_unknown_protocol_is_reported_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector_of({**BOTH, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'" in caplog.text
    assert "http/protobuf" in caplog.text


def test_an_engine_gets_the_variables_that_vllm_reads() -> None:
    assert engine_environment({}) == {}
    assert engine_environment(BOTH) == {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4318/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": "antefix-engine",
    }


@pytest.mark.parametrize(
    "name", [{"OTEL_SERVICE_NAME": "mine"}, {"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=mine"}]
)
async def test_a_service_that_has_a_name_keeps_it(
    name: dict[str, str],
    span_collector: Collector,
    first: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in name.items():
        monkeypatch.setenv(variable, value)
    assert "OTEL_SERVICE_NAME" not in engine_environment({**BOTH, **name})
    async with gateway_before(first) as front, front.post() as answer:
        assert answer.status == 200
    assert {span.service for span in span_collector.spans} == {"mine"}
