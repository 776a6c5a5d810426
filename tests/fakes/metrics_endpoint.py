"""A metrics endpoint of nothing but `antefix_build_info`, as a fleet's node has one."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Gauge, start_http_server


@contextmanager
def metrics_endpoint() -> Iterator[str]:
    """Its URL."""
    registry = CollectorRegistry()
    Gauge("antefix_build_info", "1", ["version"], registry=registry).labels("test").set(1)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
