"""`antefix up --with-prometheus` with the real programs, alongside a fake gateway: no Ray."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.fleet import starting
from cli.local import cluster, processes, ray_head
from cli.local.home import FleetState, Home
from cli.local.ports import free_ports
from cli.main import app
from common.errors import Problem
from deployments.fleet.fleet import Fleet
from tests.cli.fake_gateway import KEY, running
from tests.fakes.metrics_endpoint import metrics_endpoint
from tests.missing import program

FLEET = "name: test\npools: {engine: {model: embedded}}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    return Home()


@pytest.fixture
def fleet_file(tmp_path: Path) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return str(file)


@pytest.fixture
def fleet(home: Home, fleet_file: str) -> Iterator[FleetState]:
    """The fake gateway, recorded as the fleet of the file."""
    for needed in ("prometheus", "alertmanager"):
        program(needed)
    keys = {"api_key": KEY, "engine_secret": "x"}
    (home.folder / "keys.json").write_text(json.dumps(keys))
    with running() as gateway, metrics_endpoint() as metrics_url:
        state = FleetState(
            run_id=secrets.token_hex(16),
            fleet_file=fleet_file,
            fleet_digest=starting.wanted(fleet_file, None, None).digest,
            host="127.0.0.1",
            port=gateway.port,
            base_url=gateway.base_url,
            model="small",
            drain_timeout_s=1.0,
            started_at=0.0,
            own_ray=False,
            metrics_url=metrics_url,
            ready=True,
        )
        home.save_state(state)
        yield state
        processes.stop(state.run_id)


def antefix(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_prometheus_starts_next_to_a_running_fleet_and_ends_with_it(
    home: Home, fleet: FleetState
) -> None:
    up = antefix("up", fleet.fleet_file, "--with-prometheus", "-o", "json")
    assert up.exit_code == ExitCode.OK, up.stderr
    said = json.loads(up.stdout)
    status = json.loads(antefix("status", "-o", "json").stdout)
    for name in ("prometheus", "alertmanager"):
        assert status[name] == {"url": said[f"{name}_url"], "running": True}
    assert said["metrics_url"] == status["metrics_url"] == fleet.metrics_url
    assert antefix("down", "--now").exit_code == ExitCode.OK
    assert processes.processes(fleet.run_id) == []
    assert not home.monitoring_folder(fleet.run_id).exists()


def test_up_without_the_flag_starts_no_prometheus(fleet: FleetState) -> None:
    said = json.loads(antefix("up", fleet.fleet_file, "-o", "json").stdout)
    assert said["prometheus_url"] is said["alertmanager_url"] is None
    assert processes.processes(fleet.run_id) == []


def test_a_running_prometheus_is_not_restarted(fleet: FleetState) -> None:
    pids = []
    for _ in range(2):
        antefix("up", fleet.fleet_file, "--with-prometheus")
        pids.append({process.pid for process in processes.processes(fleet.run_id)})
    assert len(pids[0]) == 2
    assert pids[0] == pids[1]


def test_status_reports_a_dead_prometheus_and_up_restarts_it(fleet: FleetState) -> None:
    antefix("up", fleet.fleet_file, "--with-prometheus")
    prometheus = next(p for p in processes.processes(fleet.run_id) if p.name() == "prometheus")
    prometheus.kill()
    prometheus.wait(10)
    status = antefix("status")
    assert status.exit_code == ExitCode.OK
    assert "prometheus ended; restart: antefix up" in " ".join(status.stdout.split())
    antefix("up", fleet.fleet_file, "--with-prometheus")
    assert json.loads(antefix("status", "-o", "json").stdout)["prometheus"]["running"]


def test_the_output_of_up_links_to_the_web_ui_with_the_key_in_the_fragment(
    fleet: FleetState,
) -> None:
    shown = antefix("up", fleet.fleet_file).stdout
    assert f"{fleet.base_url.removesuffix('/v1')}/antefix/#key={KEY}" in shown
    assert fleet.metrics_url in shown


def test_the_link_to_the_web_ui_in_json_and_status_has_no_key(fleet: FleetState) -> None:
    page = f"{fleet.base_url.removesuffix('/v1')}/antefix/"
    assert json.loads(antefix("up", fleet.fleet_file, "-o", "json").stdout)["page_url"] == page
    status = antefix("status").stdout
    assert page in status
    assert KEY not in status


def test_the_flag_is_rejected_on_an_existing_ray_cluster(home: Home, fleet_file: str) -> None:
    refused = antefix("up", fleet_file, "--with-prometheus", "--address", "10.0.0.1:6379")
    assert refused.exit_code == ExitCode.USAGE
    assert "port 9464 of every node" in refused.stderr


def test_a_missing_program_is_reported_before_anything_starts(
    home: Home, fleet_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = antefix("up", fleet_file, "--with-prometheus")
    assert refused.exit_code == ExitCode.FAILED
    assert "apt-get install" in refused.stderr
    assert home.state() is None


class Recorded(Problem):
    """What would be started."""

    def __init__(self, state: FleetState, fleet: Fleet) -> None:
        super().__init__("enough", "")
        self.state, self.fleet = state, fleet


def is_given_to_nobody_else(port: int) -> bool:
    """A stranger, who never says SO_REUSEADDR, is refused; gateways may listen, several at once."""
    with socket.socket() as stranger, pytest.raises(OSError, match="Address already in use"):
        stranger.bind(("127.0.0.1", port))
    with contextlib.ExitStack() as gateways:
        for _ in range(2):
            at = ("127.0.0.1", port)
            gateways.enter_context(socket.create_server(at, reuse_port=True))
    return True


def would_start(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    metrics_port: int | None = None,
    port: int | None = None,
) -> Recorded:
    def record(home: Home, state: FleetState, fleet: Fleet) -> FleetState:
        for kept in (fleet.gateway.port, fleet.metrics.port):
            assert is_given_to_nobody_else(kept)
        raise Recorded(state, fleet)

    monkeypatch.setattr(cluster, "start_ray", record)
    monkeypatch.setattr(starting, "resolve_model", lambda model, show: model)
    fleet = home.folder / "fleet.yaml"
    fleet.write_text(FLEET + (f"metrics: {{port: {metrics_port}}}\n" if metrics_port else ""))
    with pytest.raises(Recorded) as recorded:
        starting.start(home, starting.wanted(str(fleet), port, None))
    assert recorded.value.state.metrics_url == (
        f"http://127.0.0.1:{recorded.value.fleet.metrics.port}/metrics"
    )
    return recorded.value


def test_the_metrics_are_at_the_port_of_the_fleet_file(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, gateway = free_ports(2)
    assert would_start(home, monkeypatch, metrics, gateway).fleet.metrics.port == metrics


def test_a_taken_metrics_port_is_replaced_and_reported(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        chosen = would_start(home, monkeypatch, taken, *free_ports(1)).fleet.metrics.port
    assert chosen != taken
    assert f"metrics are on port {chosen}, because metrics.port {taken} is taken" in (
        capsys.readouterr().err
    )


def test_metrics_use_another_port_if_the_gateway_has_the_same_one(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    fleet = would_start(home, monkeypatch, port, port).fleet
    assert fleet.gateway.port == port
    assert fleet.metrics.port != port


def test_port_0_picks_free_ports_and_keeps_them_until_gateways_listen(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = would_start(home, monkeypatch, metrics_port=None, port=0)
    assert chosen.fleet.metrics.port not in (9464, chosen.fleet.gateway.port)


def test_metrics_files_are_kept_only_for_the_run(
    home: Home, fleet: FleetState, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = home.metrics_folder("a run whose state was lost")
    lost.mkdir(parents=True)
    monkeypatch.setattr(ray_head, "start", lambda *_: "127.0.0.1:1")
    cluster.start_ray(
        home, fleet, Fleet.model_validate({"name": "a", "pools": {"b": {"model": "c"}}})
    )
    assert not lost.exists()
    assert home.metrics_folder(fleet.run_id).is_dir()
    cluster.stop(home, fleet)
    assert not home.metrics_folder(fleet.run_id).exists()
