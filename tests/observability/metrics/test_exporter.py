"""One endpoint a node, from the metric files of all its processes, dead or alive."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.local.ports import free_ports
from observability.metrics import exporter, metric_files
from tests.sentences import assert_sentences

PROCESS = """
import sys
from functools import partial
from pathlib import Path
from prometheus_client import Counter, Gauge, Histogram
from observability.metrics import exporter
from observability.metrics import metric_files
from tests.sentences import assert_sentences

folder, port, who = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if who == ["gateway"]:
    metric_files.write_as_gateway(folder)
else:
    metric_files.write_as_replica(folder, *who)
Counter("requests", "Requests.", ["pool"]).labels("main").inc(2)
Gauge("queue", "Queue.", ["pool"], multiprocess_mode="sum").labels("main").set(3)
Histogram("ttft", "TTFT.", ["pool"], buckets=[1]).labels("main").observe(0.5)
if who != ["gateway"]:
    Counter("vllm:tokens", "Tokens.", ["model_name"]).labels("m").inc(5)
    Gauge("vllm:use", "Use.", ["model_name"]).labels("m").set(0.5)
exporter.serve(folder, "127.0.0.1", port, fresh_s=0.0)
print("ready", flush=True)
sys.stdin.read()
"""


class Node:
    """The processes of a node, and what its endpoint says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        self._running = ExitStack()

    def start(self, *who: str) -> subprocess.Popen[str]:
        process = self._running.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, str(self.folder), str(self.port), *who],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self._running.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def stop(self) -> None:
        self._running.close()

    def text(self) -> str:
        url = f"http://127.0.0.1:{self.port}/metrics"
        # what a Prometheus 2.42 says it takes
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        asked = urllib.request.Request(url, headers={"accept": accept})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=")
            text: str = answer.read().decode()
            return text

    def value(self, name: str, **labels: str) -> float | None:
        """None: no such series."""
        values = [
            sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        assert len(values) <= 1
        return values[0] if values else None


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_two_gateways_of_a_node_share_one_series(node: Node) -> None:
    node.start("gateway"), node.start("gateway")
    assert node.value("requests_total", pool="main") == 4
    assert node.value("queue", pool="main") == 6
    assert node.value("ttft_bucket", pool="main", le="1.0") == 2


def test_counts_survive_the_death_of_a_gateway_and_its_successor_continues_them(node: Node) -> None:
    kill(node.start("gateway"))
    node.start("gateway")
    assert node.value("requests_total", pool="main") == 4
    assert node.value("ttft_count", pool="main") == 2
    assert node.value("queue", pool="main") == 3, "what a dead process saw is not the case"
    assert len(list((node.folder / "gateway").iterdir())) == 1, "restarts leave no files behind"


def test_an_engines_own_metrics_get_its_pool_and_its_name(node: Node) -> None:
    node.start("main", "abc12345")
    node.start("main", "def67890")
    for replica in ("abc12345", "def67890"):
        whose = {"model_name": "m", "pool": "main", "replica": replica}
        assert node.value("vllm:tokens_total", **whose) == 5
        assert node.value("vllm:use", **whose) == 0.5


def test_counters_of_a_dead_replica_are_kept_for_a_while_and_its_gauges_are_removed(
    node: Node,
) -> None:
    node.start("gateway")
    kill(node.start("main", "abc12345"))
    whose = {"model_name": "m", "pool": "main", "replica": "abc12345"}
    assert node.value("vllm:tokens_total", **whose) == 5
    assert node.value("vllm:use", **whose) is None
    folder = node.folder / "engine" / "main" / "abc12345"
    old = time.time() - metric_files.KEEP_S - 60
    for path in (*folder.iterdir(), folder):
        os.utime(path, (old, old))
    assert node.value("vllm:tokens_total", **whose) is None
    assert not folder.exists()


def test_the_endpoint_stays_while_any_process_runs(node: Node) -> None:
    gateway, _ = node.start("gateway"), node.start("main", "abc12345")
    kill(gateway)
    assert node.value("requests_total", pool="main") == 2


def test_a_metric_of_several_processes_is_described_once(node: Node) -> None:
    node.start("main", "abc12345"), node.start("main", "def67890"), node.start("gateway")
    described = [line for line in node.text().splitlines() if line.startswith("# TYPE")]
    assert len(described) == len(set(described))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_server_on_the_ipv6_wildcard_address_answers_ipv4_and_ipv6(
    tmp_path: Path, host: str
) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    (port,) = free_ports(1)
    exporter.serve(tmp_path, "::", port)
    with socket.create_connection((host, port), timeout=60) as asked:
        asked.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b" 200 OK" in asked.recv(100)


def test_a_taken_metrics_port_raises_no_error(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        exporter.serve(node.folder, "127.0.0.1", taken.getsockname()[1])


def served(folder: Path, **more: float) -> str:
    """The URL of an endpoint in this process."""
    (port,) = free_ports(1)
    exporter.serve(folder, "127.0.0.1", port, **more)
    return f"http://127.0.0.1:{port}/metrics"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return served(tmp_path)


@pytest.mark.parametrize(("fresh_s", "times"), [(1000.0, 1), (0.0, 20)])
def test_the_metric_files_are_merged_at_most_once_per_interval(
    tmp_path: Path, fresh_s: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = []

    def merge(registry: object) -> bytes:
        merged.append(registry)
        return b"# text"

    monkeypatch.setattr(exporter, "generate_latest", merge)
    url = served(tmp_path, fresh_s=fresh_s)
    for _ in range(20):
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.read() == b"# text"
    assert len(merged) == times


def test_open_connections_cost_a_bounded_number_of_threads(url: str) -> None:
    address = urllib.parse.urlsplit(url)
    before = threading.active_count()
    with ExitStack() as held:
        for _ in range(3 * exporter.CONNECTIONS_AT_MOST):
            held.enter_context(
                socket.create_connection((str(address.hostname), int(address.port or 0)), 10)
            )
        last = held.enter_context(
            socket.create_connection((str(address.hostname), int(address.port or 0)), 10)
        )
        assert last.recv(1) == b""  # closed unanswered
        assert threading.active_count() - before <= exporter.CONNECTIONS_AT_MOST


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"hello\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"],
    ids=["nothing", "half a request", "no request", "a request"],
)
def test_a_client_that_disconnects_is_not_logged(
    url: str, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    address = urllib.parse.urlsplit(url)
    for _ in range(20):
        with socket.create_connection((str(address.hostname), int(address.port or 0)), 10) as asked:
            asked.sendall(sent)
            # closing resets it
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.status == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
        b"GET /" + bytes(70_000) + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
)
def test_an_invalid_request_gets_an_error_in_plain_words(url: str, sent: bytes) -> None:
    address = urllib.parse.urlsplit(url)
    with socket.create_connection((str(address.hostname), int(address.port or 0)), 10) as asked:
        asked.sendall(sent)
        answer = HTTPResponse(asked)
        answer.begin()
        assert 400 <= answer.status < 500
        assert_sentences(answer.read().decode().strip())


def test_a_client_that_sends_one_byte_at_a_time_does_not_keep_its_thread(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "CONNECTION_S", 0.2)
    address = urllib.parse.urlsplit(url)
    with socket.create_connection((str(address.hostname), int(address.port or 0)), 0.05) as asked:
        ends = time.monotonic() + 20
        while time.monotonic() < ends:
            try:
                asked.sendall(b"a")
                if asked.recv(1) == b"":
                    return
            except TimeoutError:
                pass
            except ConnectionError:
                return
    pytest.fail("it was never cut")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9464", 200),
        ("localhost", 200),
        ("LocalHost.:9464", 200),
        ("[::1]:9464", 200),
        ("10.1.2.3", 200),
        ("", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:9464", 403),
        ("localhost.evil.example", 403),
    ],
)
def test_a_web_page_cannot_read_metrics_by_dns_rebinding(
    node: Node, host: str, status: int
) -> None:
    node.start("gateway")
    with socket.create_connection(("127.0.0.1", node.port)) as connection:
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = HTTPResponse(connection)
        answer.begin()
        body = answer.read().decode()
    assert answer.status == status
    assert ("requests_total" in body) == (status == 200)
    if status == 403:
        assert_sentences(body.strip())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "metrics.internal"])
def test_metrics_for_other_machines_are_served_by_any_name(host: str) -> None:
    """Prometheus may scrape a node by the name of its service."""
    assert not exporter.is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_loopback_address_is_recognized(host: str) -> None:
    assert exporter.is_loopback(host)
