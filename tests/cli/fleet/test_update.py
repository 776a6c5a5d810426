"""`antefix update`: what it has replaced, and what it refuses, without Ray."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.fleet import starting
from cli.local import cluster, serve_driver
from cli.local.home import FleetState, Home
from cli.main import app
from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import parse_fleet
from tests.cli.fake_gateway import KEY, running
from tests.sentences import assert_sentences

FLEET = """\
name: test
redis: {url: "redis://127.0.0.1:1"}
pools:
  engine: {model: embedded, env: {A: "1"}}
  other: {model: embedded, served_model_name: other}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    return Home()


@pytest.fixture
def fleet(home: Home) -> Iterator[FleetState]:
    """One that runs on another's Ray cluster, before a fake gateway."""
    keys = {"api_key": KEY, "engine_secret": "x"}
    (home.folder / "keys.json").write_text(json.dumps(keys))
    with running() as gateway:
        port = int(gateway.base_url.rpartition(":")[2].partition("/")[0])
        state = FleetState(
            run_id="none",
            fleet_file="test.yaml",
            fleet_digest="of it",
            host="127.0.0.1",
            port=port,
            base_url=gateway.base_url,
            model="embedded",
            drain_timeout_s=1.0,
            started_at=0.0,
            ray_address="127.0.0.1:6379",
            redis_url="redis://127.0.0.1:1",
            own_ray=False,
            ready=True,
        )
        deployed = starting.listening_on(parse_fleet(FLEET, "test.yaml"), state)
        state = dataclasses.replace(state, fleet=deployed.model_dump(mode="json"))
        home.save_state(state)
        yield state


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Ray Serve is to do; none fails."""
    told: list[dict[str, Any]] = []

    def drive(home: Home, state: FleetState, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"event": "connected"}
        given = home.state()
        assert given is not None and not given.fleet_digest, "it may be killed now"
        assert given.fleet == request["fleet"]
        told.append(request)
        pools = {"engine": {"running": 1, "target": 2, "states": {}, "delay": ""}}
        yield {"event": "pools", "pools": pools}
        yield {"event": "running"}

    monkeypatch.setattr(cluster, "_drive", drive)
    return told


def antefix(folder: Path, text: str) -> Result:
    file = folder / "fleet.yaml"
    file.write_text(text)
    return CliRunner().invoke(app, ["update", str(file), "-o", "json"])


def test_update_reports_what_it_replaces(
    home: Home, fleet: FleetState, updates: list[dict[str, Any]], tmp_path: Path
) -> None:
    changed = FLEET.replace('A: "1"', 'A: "2"').replace("other: {", "other: {policy: random, ")
    result = antefix(tmp_path, changed)
    assert result.exit_code == ExitCode.OK, result.output
    told = json.loads(result.stdout)
    assert told.pop("seconds") >= 0
    assert told == {
        "status": "updated",
        "gateways_restarted": False,
        "pools_restarted": ["engine"],
        "pools_added": [],
        "pools_removed": [],
        "reached_what_runs": ["pools.other.policy"],
    }
    (update,) = updates
    assert (update["action"], update["before"]) == ("update", fleet.fleet)
    state = home.state()
    assert state is not None and state.fleet == update["fleet"]
    assert state.fleet_digest not in ("", fleet.fleet_digest) and state.started_serve
    # from now on it is the fleet that runs
    assert antefix(tmp_path, changed).exit_code == ExitCode.OK
    assert updates[1]["before"] == state.fleet


def test_a_dry_run_reports_what_would_restart_and_changes_nothing(
    home: Home, fleet: FleetState, updates: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace('A: "1"', 'A: "2"'))
    command = ["update", str(file), "--dry-run"]
    told = json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).stdout)
    assert (told["status"], told["pools_restarted"]) == ("dry_run", ["engine"])
    shown = CliRunner().invoke(app, command)
    assert "Engines of these pools would be replaced: engine." in shown.stdout
    assert (shown.exit_code, updates, home.state()) == (ExitCode.OK, [], fleet)


@pytest.mark.parametrize("begun", [True, False])
def test_everything_is_redeployed_after_an_update_that_failed_halfway(
    home: Home, fleet: FleetState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    before: list[Any] = []

    def drive(home: Home, state: FleetState, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        before.append(request["before"])
        if begun:
            yield {"event": "connected"}
        yield {"event": "failed", "message": "engine: it does not load", "remedy": ""}

    monkeypatch.setattr(cluster, "_drive", drive)
    for _ in range(2):
        result = antefix(tmp_path, FLEET.replace('A: "1"', 'A: "2"'))
        assert result.exit_code == ExitCode.FAILED and "it does not load" in result.stdout
    assert before == [fleet.fleet, {} if begun else fleet.fleet]


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("name: test", "name: another"),
        ("127.0.0.1:1", "127.0.0.1:2"),
        ("name: test", "name: test\ngateway: {host: 0.0.0.0}"),
        ("name: test", "name: test\nmetrics: {port: 9999}"),
    ],
)
def test_a_setting_that_needs_a_restart_of_the_fleet_is_rejected(
    fleet: FleetState, updates: list[dict[str, Any]], tmp_path: Path, was: str, becomes: str
) -> None:
    result = antefix(tmp_path, FLEET.replace(was, becomes))
    assert result.exit_code == ExitCode.RESTART_REQUIRED, result.output
    assert "antefix down" in result.stdout
    assert not updates


def test_update_reports_that_an_edited_port_stays(
    fleet: FleetState, updates: list[dict[str, Any]], tmp_path: Path
) -> None:
    result = antefix(tmp_path, FLEET + "gateway: {port: 9}\n")
    assert f"gateway.port stays {fleet.port} instead of 9" in result.stderr
    assert not json.loads(result.stdout)["gateways_restarted"]


def test_up_names_the_command_that_applies_a_changed_file_to_a_running_fleet(
    fleet: FleetState, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    up = ["up", str(file), "--address", fleet.ray_address, "-o", "json"]
    result = CliRunner().invoke(app, up)
    assert result.exit_code == ExitCode.ALREADY_RUNNING
    assert f"antefix update {file}" in json.loads(result.stdout)["error"]["remedy"]


def test_a_fleet_of_an_earlier_release_is_refused(
    home: Home, fleet: FleetState, updates: list[dict[str, Any]], tmp_path: Path
) -> None:
    home.save_state(dataclasses.replace(fleet, fleet={}))
    assert antefix(tmp_path, FLEET).exit_code == ExitCode.RESTART_REQUIRED


def test_without_a_fleet_there_is_nothing_to_update(home: Home, tmp_path: Path) -> None:
    assert antefix(tmp_path, FLEET).exit_code == ExitCode.NOT_RUNNING


def test_the_text_output_of_update_is_in_sentences(
    home: Home, fleet: FleetState, updates: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    for text in (FLEET, FLEET.replace("policy", "x").replace('A: "1"', 'A: "2"')):
        file.write_text(text)
        result = CliRunner().invoke(app, ["update", str(file)])
        assert_sentences(result.stdout.strip())


class FakeServe:
    def __init__(self) -> None:
        self.run: list[set[str]] = []
        self.deleted: list[str] = []

    def RunTarget(self, target: Any, name: str, route_prefix: Any) -> str:  # noqa: N802
        return name

    def run_many(self, targets: list[str], **_: Any) -> None:
        self.run.append(set(targets))

    def delete(self, name: str, _blocking: bool) -> None:
        self.deleted.append(name)


def test_only_changed_applications_are_redeployed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve = FakeServe()
    before = parse_fleet(FLEET, "before").model_dump(mode="json")
    after = parse_fleet(
        FLEET.replace('A: "1"', 'A: "2"').replace("other: {", "third: {"), "after"
    ).model_dump(mode="json")
    ours = ["antefix", "antefix-engine", "antefix-other", "antefix-third"]

    async def running(*_: Any) -> dict[str, int]:
        return {"engine": 3}

    def built(fleet: Fleet, secrets: Any, replicas: Any) -> dict[str, None]:
        assert replicas == {"engine": 3}
        return dict.fromkeys(["antefix", *(f"antefix-{name}" for name in fleet.pools)])

    monkeypatch.setattr(serve_driver, "serve", serve)
    monkeypatch.setattr(serve_driver, "running_replicas", running)
    monkeypatch.setattr(serve_driver, "applications", built)
    monkeypatch.setattr(serve_driver, "_ours", lambda: dict.fromkeys(ours))
    monkeypatch.setattr(serve_driver, "_follow", lambda fleet, emit: None)
    secrets = {"api_keys": {}, "engine_secret": "x", "redis_url": "redis://127.0.0.1:1"}

    def update(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
        request = {"local": False, "before": before, "fleet": after, "secrets": secrets}
        serve_driver.update(request, lambda event: None)
        return serve.run[-1]

    assert update(before, after) == {"antefix", "antefix-engine", "antefix-third"}
    assert serve.deleted == ["antefix-other"]
    hot = json.loads(json.dumps(before))
    hot["pools"]["engine"]["policy"] = "random"
    assert update(before, hot) == {"antefix"}
    assert update({}, before) == {"antefix", "antefix-engine", "antefix-other"}


@pytest.mark.parametrize(
    ("has", "says"),
    [
        ({"CPU": 3.0}, "reserves"),
        ({"CPU": 100.0}, "2 GPUs, but Ray finds 0"),
        ({"CPU": 100.0, "GPU": 2.0}, ""),
    ],
)
def test_an_update_without_room_on_the_ray_cluster_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, has: dict[str, float], says: str
) -> None:
    gpus = 0 if says == "reserves" else 1
    pool = f"{{model: embedded, replicas: 2, resources: {{gpus: {gpus}, cpus: 32}}}}"
    fleet = parse_fleet(f"name: test\npools:\n  engine: {pool}\n", check_engine_args=False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: has)
    told: list[dict[str, Any]] = []
    assert serve_driver._fits(fleet, told.append) == (not says)
    assert all(says in event["message"] and event["remedy"] for event in told)
    assert len(told) == bool(says)
