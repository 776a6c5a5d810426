"""Traces of requests, where OpenTelemetry's own environment variables say to whom they go.

A request has a span `gateway`, below it one `placement` and an `engine` for each attempt. While
tracing is off there is no span and nothing of OpenTelemetry is imported from here; the client's
W3C context still reaches the engine. Nothing here raises into a request or waits for a
collector, and no span holds a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from observability.request_record import GatewayTracing

logger = logging.getLogger(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_PROTOCOLS = ("grpc", "http/protobuf")


@dataclass(frozen=True)
class Collector:
    """Where spans go: `endpoint` as an exporter of spans takes it, its path included."""

    endpoint: str
    protocol: str


def collector_of(environment: Mapping[str, str]) -> Collector | None:
    """Where the environment sends spans; None: tracing is off, as it asks for or as it must be.

    Source of names: https://opentelemetry.io/docs/specs/otel/protocol/exporter/. The default
    protocol is that of OpenTelemetry for Python, whose exporters a gateway and vLLM both use.
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
        logger.error("traces are off: %s is %r; %s", name, protocol, remedy)
        return None
    if traces or protocol == "grpc":
        return Collector(traces or everything, protocol)
    return Collector(everything.rstrip("/") + "/v1/traces", protocol)


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What vLLM reads of tracing where the rest of the world reads more; {} where it is off.

    vLLM knows the variables for traces alone, not those for everything.
    Source: vllm/tracing/otel.py, 0.32.
    """
    collector = collector_of(environment)
    if collector is None:
        return {}
    told = {TRACES_ENDPOINT: collector.endpoint, _TRACES_PROTOCOL: collector.protocol}
    if not service_is_named(environment):
        told["OTEL_SERVICE_NAME"] = "antefix-engine"
    return told


def service_is_named(environment: Mapping[str, str]) -> bool:
    """Whether the environment says what OpenTelemetry is to call this process."""
    attributes = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    names = [pair.partition("=")[0].strip() for pair in attributes.split(",")]
    return bool(environment.get("OTEL_SERVICE_NAME")) or "service.name" in names


def tracing_of(environment: Mapping[str, str], version: str) -> GatewayTracing:
    """A gateway's tracing, as the environment asks for it."""
    collector = collector_of(environment)
    if collector is None:
        return GatewayTracing()
    from observability.spans import SpanTracing

    return SpanTracing(collector.protocol, version, service_is_named(environment))
