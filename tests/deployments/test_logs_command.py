"""`antefix logs` over files as a fleet leaves them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deployments.cli import app
from deployments.local.home import Home

ENDED: dict[str, object] = {
    "timestamp": "2026-05-01T10:00:00.123+00:00",
    "level": "INFO",
    "logger": "deployments.request_log",
    "message": "request ended",
    "component": "gateway",
    "replica": "abcd1234",
    "request_id": "r-1",
    "outcome": "ok",
    "status": 200,
}
FAILED = {**ENDED, "message": "it failed", "level": "ERROR", "request_id": "r-12"}
FAILED["exception"] = "Traceback\n  File x\nValueError: no"
SERVES: dict[str, object] = {
    "asctime": "2026-05-01 10:00:00,123",
    "levelname": "INFO",
    "message": "Initializing",
}
SERVES |= {"deployment": "small", "process": 1, "worker_id": "ffff"}
VLLM = "INFO 05-01 10:00:00 [core.py:1] request chatcmpl-r-1-7f aborted"


@pytest.fixture(autouse=True)
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running fleet's log files; that there is one is all that is pretended."""
    serve, home = tmp_path / "ray" / "serve", tmp_path / "home"
    serve.mkdir(parents=True)
    monkeypatch.setenv("ANTEFIX_HOME", str(home))
    monkeypatch.setattr(Home, "state", lambda self: object())
    monkeypatch.setattr("deployments.local.cluster.ray_logs", lambda state: tmp_path / "ray")
    said = {
        serve / "replica_antefix_gateway_abcd1234.log": [json.dumps(ENDED), json.dumps(FAILED)],
        serve / "replica_antefix_small_efgh5678.log": [json.dumps(SERVES)],
        tmp_path / "ray" / "worker-1.err": [":actor_name:ServeReplica:antefix:small", VLLM],
    }
    said[Home().logs / "prometheus.log"] = ["level=info msg=ready"]
    for file, lines in said.items():
        file.write_text("\n".join(lines) + "\n")


def logs(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, ["logs", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_a_json_line_is_shown_as_text_with_its_facts() -> None:
    (line, *_) = logs("--component", "gateway")
    component, _, rest = line.partition(" | ")
    assert component.strip() == "gateway"
    assert rest.partition(" ")[2] == "INFO    request ended request_id=r-1 outcome=ok status=200"


def test_an_exception_follows_on_lines_of_its_own() -> None:
    assert logs("--component", "gateway")[-3:] == [
        "gateway | Traceback",
        "gateway |   File x",
        "gateway | ValueError: no",
    ]


def test_what_watches_a_fleet_is_a_component_of_its_own() -> None:
    assert logs("--component", "monitoring") == ["monitoring | level=info msg=ready"]


def test_serves_first_lines_are_shown_like_ours() -> None:
    assert "engine  | 10:00:00.123 INFO    Initializing" in logs("--component", "engine")


def test_text_is_shown_as_it_is() -> None:
    assert f"engine  | {VLLM}" in logs()


def test_json_lines_are_given_as_they_are_and_no_others() -> None:
    assert [json.loads(line) for line in logs("--json")] == [ENDED, FAILED, SERVES]


def test_the_lines_of_a_request_are_those_with_its_id_and_no_longer_one() -> None:
    found = logs("--request", "r-1")
    assert len(found) == 2
    assert "request_id=r-1 " in found[0]
    assert found[1].endswith(VLLM)


def test_a_requests_lines_are_found_however_far_back(tmp_path: Path) -> None:
    file = tmp_path / "ray" / "serve" / "replica_antefix_gateway_abcd1234.log"
    with file.open("a") as log:
        log.writelines(json.dumps({**ENDED, "request_id": "x" * 100}) + "\n" for _ in range(3000))
    assert any("request_id=r-1 " in line for line in logs("--request", "r-1"))


def test_the_last_lines_are_counted_after_the_choice() -> None:
    assert len(logs("--request", "r-1", "-n", "1", "--component", "gateway")) == 1
    assert logs("-n", "0") == []
