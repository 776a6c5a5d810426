"""Traces of requests, sent to the collector of OpenTelemetry's environment variables.

A request has a span `gateway`, below it one `placement` and an `engine` for each attempt. While
tracing is off, there are no spans and OpenTelemetry is not imported from here; the client's W3C
context still reaches the engine. Nothing here raises into a request or waits for a collector, and
no span contains a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from observability.traces.request_record import GatewayTracing

logger = logging.getLogger(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_PROTOCOLS = ("grpc", "http/protobuf")


@dataclass(frozen=True)
class Collector:
    """The target of spans: `endpoint` in the form of a span exporter, including its path."""

    endpoint: str
    protocol: str


def collector_of(environment: Mapping[str, str]) -> Collector | None:
    """Return the collector of the environment; None: tracing is off, by choice or necessity.

    Source of names: https://opentelemetry.io/docs/specs/otel/protocol/exporter/. The default
    protocol is that of OpenTelemetry for Python, whose exporters both a gateway and vLLM use.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    everything, traces = environment.get(_ENDPOINT, ""), environment.get(TRACES_ENDPOINT, "")
    if not (everything or traces):
        return None
    name = _TRACES_PROTOCOL if environment.get(_TRACES_PROTOCOL) else _PROTOCOL
    protocol = environment.get(name) or "grpc"
    if protocol not in _PROTOCOLS:
        remedy = f"set it to one of {', '.join(_PROTOCOLS)}"
        logger.error("disabled traces: %s is %r; %s", name, protocol, remedy)
        return None
    if traces or protocol == "grpc":
        return Collector(traces or everything, protocol)
    return Collector(everything.rstrip("/") + "/v1/traces", protocol)


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the tracing variables that vLLM reads, from the general ones; {} if tracing is off.

    vLLM knows only the variables for traces, not the general ones. Source: vllm/tracing/otel.py,
    0.32.
    """
    collector = collector_of(environment)
    if collector is None:
        return {}
    told = {TRACES_ENDPOINT: collector.endpoint, _TRACES_PROTOCOL: collector.protocol}
    if not service_is_named(environment):
        told["OTEL_SERVICE_NAME"] = "antefix-engine"
    return told


def service_is_named(environment: Mapping[str, str]) -> bool:
    """Return whether the environment names this process for OpenTelemetry."""
    attributes = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    names = [pair.partition("=")[0].strip() for pair in attributes.split(",")]
    return bool(environment.get("OTEL_SERVICE_NAME")) or "service.name" in names


def tracing_of(environment: Mapping[str, str], version: str) -> GatewayTracing:
    """Return a gateway's tracing, by the environment."""
    collector = collector_of(environment)
    if collector is None:
        return GatewayTracing()
    from observability.traces.spans import SpanTracing

    return SpanTracing(collector.protocol, version, service_is_named(environment))
