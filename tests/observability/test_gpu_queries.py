"""The few queries that need GPUs have data where dcgm-exporter is scraped.

`dcgm_exporter.txt` is a scrape in the form and with the names that the exporter documents
(https://github.com/NVIDIA/dcgm-exporter); the figures are of no machine in particular. One
metric is the gateway's.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.local import monitoring, processes
from tests.missing import program
from tests.prometheus import Prometheus, asked_for, needs_gpus, queries
from tests.waiting import until

SHARE = "antefix_gpu_memory_share_ratio"
SCRAPE = Path(__file__).with_name("dcgm_exporter.txt").read_bytes() + f"{SHARE} 0.9\n".encode()
QUERIES = {name: query for name, query in queries().items() if needs_gpus(query)}
WITHIN_S = 60.0


class _Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # as http.server calls it
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(SCRAPE)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def exporter() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder, run_id = tmp_path_factory.mktemp("prometheus"), "gpu-queries"
    programs = monitoring.Programs(program("prometheus"), program("alertmanager"))
    with exporter() as url:
        try:
            started = monitoring.start(programs, folder / "monitoring", folder, url, run_id)
            yield Prometheus(started.prometheus)
        finally:
            processes.stop(run_id)


async def test_each_gpu_query_has_data(prometheus: Prometheus) -> None:
    assert len(QUERIES) >= 6
    await until(lambda: prometheus.query("DCGM_FI_DEV_GPU_UTIL"), WITHIN_S)
    assert {name: query for name, query in QUERIES.items() if not prometheus.query(query)} == {}


def test_gpu_queries_use_only_dcgm_metrics_and_the_share_of_the_engines() -> None:
    metrics = {metric for query in QUERIES.values() for metric in asked_for(query)}
    assert {metric for metric in metrics if not metric.startswith("DCGM_")} == {SHARE}
