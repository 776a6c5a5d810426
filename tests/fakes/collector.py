"""An OpenTelemetry collector that keeps the spans it gets, over OTLP/HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.process.http_server import HttpServer


@dataclass(frozen=True)
class Told:
    """One span; ids are hexadecimal, `service` is who sent it, `failed` by its status."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    service: str
    failed: bool
    attributes: dict[str, Any]
    began: int
    ended: int


class Collector:
    """`raw` is all that came."""

    def __init__(self) -> None:
        self.url = ""
        self.raw: list[bytes] = []
        self.spans: list[Told] = []

    @property
    def environment(self) -> dict[str, str]:
        """What sends the spans of a process here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "20",
        }

    def of(self, name: str) -> Told:
        """The only span of that name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span

    async def traces(self, request: Request) -> Response:
        body = await request.body()
        self.raw.append(body)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(of_resource.resource.attributes)["service.name"]
            for of_scope in of_resource.scope_spans:
                self.spans += [_collected_span(span, service) for span in of_scope.spans]
        return Response(media_type="application/x-protobuf")


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    running = Collector()
    server = HttpServer(Starlette(routes=[Route("/v1/traces", running.traces, methods=["POST"])]))
    running.url = await server.start("127.0.0.1")
    yield running
    await server.drain()


def _collected_span(span: Any, service: str) -> Told:
    return Told(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=service,
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}
