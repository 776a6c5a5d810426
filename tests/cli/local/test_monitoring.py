"""Starts the real Prometheus and Alertmanager, with separate rules where it breaks them."""

import json
import os
import secrets
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.local import monitoring, processes
from cli.local.monitoring import Monitoring
from cli.local.ports import free_ports
from common.errors import Problem
from observability import GENERATED
from tests.fakes.metrics_endpoint import metrics_endpoint
from tests.missing import program
from tests.waiting import until

# After its delay, since Prometheus takes 5 s to find the Alertmanager, and sends again only after
# a minute.
ALWAYS_FIRING = """\
groups:
  - name: test
    interval: 1s
    rules: [{alert: Always, expr: vector(1), for: 8s, labels: {severity: page}}]
"""
NO_RECEIVER = "{route: {receiver: none}, receivers: [{name: none}]}\n"
WITHIN_S = 120.0


class Beside:
    """One run with its folders."""

    def __init__(self, folder: Path) -> None:
        self.run_id = secrets.token_hex(16)
        self.folder, self.logs = folder / "monitoring", folder / "logs"
        self.generated = folder / "generated"
        for made in (self.logs, self.generated):
            made.mkdir()
        (self.generated / "rules.yaml").write_text(ALWAYS_FIRING)
        (self.generated / "alertmanager.yaml").write_text(NO_RECEIVER)

    def start(self, metrics_url: str, generated: Path | None = None, **more: Any) -> Monitoring:
        programs = monitoring.Programs(program("prometheus"), program("alertmanager"))
        return monitoring.start(
            programs,
            self.folder,
            self.logs,
            metrics_url,
            self.run_id,
            generated or self.generated,
            **more,
        )


@pytest.fixture
def monitoring_run(tmp_path: Path) -> Iterator[Beside]:
    beside = Beside(tmp_path)
    yield beside
    processes.stop(beside.run_id)


@pytest.fixture
def metrics_url() -> Iterator[str]:
    with metrics_endpoint() as url:
        yield url


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def query(prometheus: str, expression: str) -> list[str]:
    """The values of an instant query."""
    asked = urllib.parse.urlencode({"query": expression})
    found = read(f"{prometheus}/api/v1/query?{asked}")["data"]["result"]
    return [series["value"][1] for series in found]


async def test_prometheus_reads_the_metrics_of_the_fleet(
    monitoring_run: Beside, metrics_url: str
) -> None:
    started = monitoring_run.start(metrics_url)
    await until(lambda: query(started.prometheus, 'up{job="antefix"} == 1'), WITHIN_S)
    assert query(started.prometheus, "antefix_build_info") == ["1"]


async def test_an_alert_reaches_the_alertmanager(monitoring_run: Beside, metrics_url: str) -> None:
    started = monitoring_run.start(metrics_url)
    await until(lambda: read(f"{started.alertmanager}/api/v2/alerts"), WITHIN_S)


def test_prometheus_and_alertmanager_belong_to_the_run_and_end_with_it(
    monitoring_run: Beside, metrics_url: str
) -> None:
    monitoring_run.start(metrics_url)
    assert monitoring.running(monitoring_run.run_id) == {"prometheus", "alertmanager"}
    processes.stop(monitoring_run.run_id)
    assert monitoring.running(monitoring_run.run_id) == set()


def test_prometheus_and_alertmanager_listen_on_loopback_only(
    monitoring_run: Beside, metrics_url: str
) -> None:
    started = monitoring_run.start(metrics_url)
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in processes.processes(monitoring_run.run_id)
        for connection in process.net_connections("inet")
        if connection.status == "LISTEN"
    }
    ports = {urllib.parse.urlsplit(url).port for url in vars(started).values()}
    assert listening == {("127.0.0.1", port) for port in ports}


async def test_the_data_of_prometheus_survives_its_death(
    monitoring_run: Beside, metrics_url: str
) -> None:
    started = monitoring_run.start(metrics_url)
    await until(lambda: query(started.prometheus, "antefix_build_info"), WITHIN_S)
    for process in processes.processes(monitoring_run.run_id):
        if process.name() == "prometheus":
            process.kill()
            process.wait(10)
    assert monitoring.running(monitoring_run.run_id) == {"alertmanager"}
    again = monitoring_run.start("http://127.0.0.1:1/metrics")
    assert query(again.prometheus, "count_over_time(antefix_build_info[1h]) > 0")


@pytest.mark.parametrize("thought_free", [False, True])
def test_another_port_is_used_if_the_usual_one_is_taken(
    thought_free: bool, monitoring_run: Beside, metrics_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        if thought_free:
            monkeypatch.setattr(monitoring, "is_free", lambda host, port: True)
        started = monitoring_run.start(metrics_url, ports=(taken, taken))
    assert not started.prometheus.endswith(f":{taken}")
    assert not started.alertmanager.endswith(f":{taken}")


def test_the_usual_port_is_taken_when_it_is_free(monitoring_run: Beside, metrics_url: str) -> None:
    prometheus, alertmanager = free_ports(2)
    started = monitoring_run.start(metrics_url, ports=(prometheus, alertmanager))
    assert started == Monitoring(
        f"http://127.0.0.1:{prometheus}", f"http://127.0.0.1:{alertmanager}"
    )


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("rules.yaml", "groups: [{name: a, rules: [{record: b, expr: sum(}]}]", "unclosed left"),
        ("rules.yaml", "groups: [", "rules.yaml"),
        ("alertmanager.yaml", "route: {receiver: nobody}", "nobody"),
    ],
)
def test_a_wrong_file_is_reported_with_its_reason_and_leaves_nothing_running(
    file: str, text: str, said: str, monitoring_run: Beside, metrics_url: str
) -> None:
    (monitoring_run.generated / file).write_text(text)
    with pytest.raises(Problem, match=f"does not start: .*{said}"):
        monitoring_run.start(metrics_url)
    assert processes.processes(monitoring_run.run_id) == []


def test_a_program_that_never_becomes_ready_is_an_error(
    monitoring_run: Beside, metrics_url: str
) -> None:
    idle = monitoring_run.folder.parent / "idle"
    idle.write_text("#!/bin/sh\nexec sleep 600\n")
    idle.chmod(0o700)
    programs = monitoring.Programs(str(idle), str(idle))
    with pytest.raises(Problem, match="alertmanager does not start: not ready within"):
        monitoring.start(
            programs,
            monitoring_run.folder,
            monitoring_run.logs,
            metrics_url,
            monitoring_run.run_id,
            monitoring_run.generated,
            within_s=0.5,
        )
    assert processes.processes(monitoring_run.run_id) == []


def test_prometheus_and_alertmanager_accept_the_shipped_files(
    monitoring_run: Beside, metrics_url: str
) -> None:
    monitoring_run.start(metrics_url, GENERATED)
    for command in (
        [program("promtool"), "check", "config", "prometheus.yml"],
        [program("amtool"), "check-config", "alertmanager.yaml"],
    ):
        checked = subprocess.run(
            command, cwd=monitoring_run.folder, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ([], "prometheus and alertmanager"),
        (["prometheus"], "alertmanager"),
        (["prometheus-alertmanager"], "prometheus"),
    ],
)
def test_a_missing_program_is_named_with_its_packages(
    there: list[str], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(there, tmp_path, monkeypatch)
    with pytest.raises(Problem, match=f"needs {missing} on PATH") as error:
        monitoring.find_programs()
    assert "apt-get install" in error.value.remedy


@pytest.mark.parametrize("alertmanager", ["alertmanager", "prometheus-alertmanager"])
def test_the_alertmanager_is_found_by_either_name(
    alertmanager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(["prometheus", alertmanager], tmp_path, monkeypatch)
    assert Path(monitoring.find_programs().alertmanager).name == alertmanager


def put_on_path(names: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in names:
        (folder / name).touch(0o700)
    monkeypatch.setitem(os.environ, "PATH", str(folder))
