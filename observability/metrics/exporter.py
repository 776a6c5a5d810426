"""One metrics endpoint per node for Prometheus, with the counts of all processes of the node.

Every gateway and engine replica of the node serves it, on one port (SO_REUSEPORT), from all files
(`observability.metrics.metric_files`). So it is available while any of them runs. It runs in a
thread, so that merging does not delay streams.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from common.loops import forever_in_thread
from observability.metrics import metric_files

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

logger = logging.getLogger(__name__)

# Scrapes are rarer than this, and merging costs the process time.
FRESH_S = 1.0
# Each is a thread; further connections are closed unanswered.
CONNECTIONS_AT_MOST = 16
# From the first byte to the last. Prometheus does not wait longer for an answer.
CONNECTION_S = 10.0
# Names of this machine that no foreign DNS server answers for.
OWN_NAMES = ("localhost", "host.docker.internal")


class NodeCollector(Collector):
    """Collects the metric files in `folder`; those of engine replicas get the labels `pool` and
    `replica`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        gateways = [file for files in metric_files.gateway_files(self._folder) for file in files]
        metrics = {metric.name: metric for metric in _merged(gateways)}
        for pool, replica, files in metric_files.replica_files(self._folder):
            whose = {"pool": pool, "replica": replica}
            for metric in _merged(files):
                known = metrics.setdefault(metric.name, metric)
                samples = [
                    sample._replace(labels={**_without_pid(sample.labels), **whose})
                    for sample in metric.samples
                ]
                known.samples = samples if known is metric else known.samples + samples
        return metrics.values()


def serve(folder: Path, host: str, port: int, *, fresh_s: float = FRESH_S) -> None:
    """Serve `folder` from a daemon thread, on a port that other processes of the node also serve.

    The files are merged at most once in `fresh_s`. If the port cannot be opened, that is logged and
    the process continues without it.
    """
    exposition, is_local = _Exposition(folder, fresh_s), is_loopback(host)

    def answer(environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        if is_local and not names_this_machine(environ.get("HTTP_HOST", "")):
            start("403 Forbidden", [("content-type", "text/plain")])
            return [_FOREIGN]
        # always in this format: in the other, prometheus_client 0.26 writes vllm_ for vllm:
        start("200 OK", [("content-type", CONTENT_TYPE_PLAIN_0_0_4)])
        return [exposition.text()]

    try:
        server_class = _ServerOfIpv6 if ":" in host else _Server
        server = make_server(host, port, answer, server_class, _Handler)
    except OSError as error:
        logger.warning("failed to serve metrics at %s port %d: %s", host, port, error)
        return
    fails = f"failed to serve metrics at {host} port {port}"
    forever_in_thread("metrics_server", server.serve_forever, fails=fails, logger=logger)


_FOREIGN = (
    b"Only this machine may read these metrics. Use its address, such as 127.0.0.1, or set"
    b" 'metrics.host' in the fleet file to allow other machines.\n"
)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_this_machine(host_header: str) -> bool:
    """Return whether a `Host` is an address or a name that no web page can point at this machine.

    A browser sends the name of the page's server, which may have been rebound to 127.0.0.1.
    """
    name = host_header.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") < 2:
        name = name.partition(":")[0]
    if not name or name.removesuffix(".") in OWN_NAMES:
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


class _Exposition:
    """The exposition, merged at most once in `fresh_s`, regardless of the number of requests."""

    def __init__(self, folder: Path, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._registry = CollectorRegistry()
        self._registry.register(NodeCollector(folder))
        self._merging = threading.Lock()
        self._text = b""
        self._merged_at = float("-inf")

    def text(self) -> bytes:
        with self._merging:
            if time.monotonic() - self._merged_at >= self._fresh_s:
                self._text = generate_latest(self._registry)
                self._merged_at = time.monotonic()
            return self._text


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    allow_reuse_port = True
    daemon_threads = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self._open: dict[socket.socket, float] = {}  # start, by the monotonic clock
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) < CONNECTIONS_AT_MOST:
            self._open[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._open[request]

    def service_actions(self) -> None:
        """Check connections twice a second, because a slow client occupies its thread."""
        late = time.monotonic() - CONNECTION_S
        for connection, since in list(self._open.items()):
            if since < late:
                with contextlib.suppress(OSError):  # its thread has closed it
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a disconnected client is not a fault, and unknown clients must not fill
        a log."""
        if not isinstance(sys.exception(), OSError):
            logger.exception("failed to answer a request for metrics")


class _ServerOfIpv6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an unreadable request, which is the client's fault: never a 5xx."""
        self.request_version = self.protocol_version  # otherwise no status is sent
        text = b"The request is not valid HTTP/1.1. Send GET /metrics, without TLS.\n"
        self.send_response(code if code < HTTPStatus.INTERNAL_SERVER_ERROR else 400)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: each scrape would be a line."""


def _merged(files: Iterable[Path]) -> Iterable[Metric]:
    # vLLM's files may be removed while they are read; a file is empty if the disk was full
    there = [str(file) for file in files if file.exists() and file.stat().st_size]
    return MultiProcessCollector.merge(there)  # type: ignore[no-untyped-call, no-any-return]


def _without_pid(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "pid"}
