"""Spans of a request, created with OpenTelemetry's SDK, which is imported only if tracing is on.

Attribute names follow OpenTelemetry's conventions for HTTP and generative AI, in
opentelemetry-semantic-conventions 0.66; other attributes start with `antefix.`. A separate thread
exports spans: if a collector does not accept them in time, they are dropped, and no request waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from observability.traces.request_record import (
    AnswerEnd,
    Fact,
    GatewayTracing,
    Leg,
    RequestRecord,
    RequestTrace,
)

# A collector that does not answer must not delay the end of a gateway.
CLOSE_S = 3.0
_W3C = TraceContextTextMapPropagator()


class SpanTracing(GatewayTracing):
    """Spans of one gateway, sent to the collector of the environment by `protocol`."""

    def __init__(self, protocol: str, version: str, service_is_named: bool) -> None:
        about = {"service.version": version}
        if not service_is_named:
            about["service.name"] = "antefix-gateway"
        # shutdown_on_exit would delay the end of the process, unlike `close`
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(protocol)))
        self._tracer = self._provider.get_tracer("antefix", version)

    def request(self, headers: Mapping[str, str], since_s: float) -> RequestTrace:
        return SpanTrace(self._tracer, headers, since_s)

    async def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)


def _exporter(protocol: str) -> SpanExporter:
    """Return an exporter. It reads endpoint, headers, certificates and timeout from the
    environment."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http()


class SpanTrace(RequestTrace):
    """One request, from `since_s` seconds ago to `ended`; its placement starts now."""

    def __init__(self, tracer: Tracer, headers: Mapping[str, str], since_s: float) -> None:
        super().__init__(headers)
        self._tracer = tracer
        now = time.time_ns()
        parent = _W3C.extract(self._context, context=Context())
        self._span = tracer.start_span(
            "gateway", context=parent, kind=SpanKind.SERVER, start_time=now - int(since_s * 1e9)
        )
        self._within = set_span_in_context(self._span, Context())
        self._placement = tracer.start_span("placement", context=self._within, start_time=now)

    def placed(self, facts: Callable[[], Mapping[str, Fact | None]]) -> None:
        for name, value in facts().items():
            _set(self._placement, f"antefix.{name}", value)
        self._placement.end()

    def attempt(self, record: RequestRecord) -> Leg:
        span = self._tracer.start_span("engine", context=self._within, kind=SpanKind.CLIENT)
        return SpanLeg(span, record)

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        span = self._span
        if self._placement.is_recording():  # the request was never admitted
            _set(self._placement, "antefix.verdict", record.verdict)
            _set_error(self._placement, end.error or end.outcome, end.outcome == "failed")
            self._placement.end()
        _set(span, "http.request.method", "POST")
        _set(span, "http.route", record.facts.path)
        _set(span, "http.response.status_code", end.status or None)
        _set(span, "gen_ai.operation.name", record.facts.operation)
        _set(span, "gen_ai.request.model", record.facts.model)
        for name in ("request_id", "tenant", "pool", "priority"):
            _set(span, f"antefix.{name}", getattr(record.facts, name))
        _set(span, "antefix.verdict", record.verdict)
        _set(span, "antefix.outcome", end.outcome)
        _set(span, "antefix.resumed", end.resumed)
        _set(span, "antefix.moved", end.moved)
        _set(span, "antefix.resume_mode", end.resume_mode)
        _set(span, "antefix.ttft_s", record.ttft_s)
        for name, seconds in vars(record.phases).items():
            _set(span, f"antefix.{name}", seconds or None)
        _set(span, "antefix.tpot_s", record.tpot_s(end))
        _set_usage(span, record, end.output_tokens)
        _set_error(span, end.error, end.outcome in ("failed", "deadline"))
        span.end()


class SpanLeg(Leg):
    """One attempt, started now."""

    def __init__(self, span: Span, record: RequestRecord) -> None:
        headers: dict[str, str] = {}
        _W3C.inject(headers, context=set_span_in_context(span, Context()))
        super().__init__(headers)
        self._span = span
        self._record = record
        self._began_it = True

    def resumes(self, tokens: int) -> None:
        self._began_it = False
        _set(self._span, "antefix.resumed_tokens", tokens)

    def failed(self, code: str) -> None:
        _set_error(self._span, code, True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        span, record = self._span, self._record
        _set(span, "gen_ai.provider.name", "vllm")
        _set(span, "gen_ai.operation.name", record.facts.operation)
        _set(span, "antefix.replica", self.replica_id)
        if self.replica_id == record.replica_id and record.ttft_s is not None and self._began_it:
            _set(span, "gen_ai.response.time_to_first_chunk", record.phases.engine_s)
            _set(span, "antefix.pool", record.served_by)
            _set_usage(span, record, self.output_tokens)
        # the client disconnected, or its deadline has passed
        if isinstance(error, asyncio.CancelledError):
            _set_error(span, "cancelled", False)
        elif error is not None:
            _set_error(span, getattr(error, "code", "") or type(error).__name__, True)
        span.end()


def _set_usage(span: Span, record: RequestRecord, output_tokens: int | None) -> None:
    _set(span, "gen_ai.usage.input_tokens", record.prompt_tokens)
    _set(span, "gen_ai.usage.cache_read.input_tokens", record.cached_tokens)
    _set(span, "gen_ai.usage.output_tokens", output_tokens)


def _set(span: Span, name: str, value: Fact | None) -> None:
    if value is not None and value != "":
        span.set_attribute(name, value)


def _set_error(span: Span, code: str, is_fault: bool) -> None:
    """Mark an error. `is_fault`: not only the client's fault, as OpenTelemetry's HTTP conventions
    require."""
    if code:
        span.set_attribute("error.type", code)
    if code and is_fault:
        span.set_status(StatusCode.ERROR, code)
