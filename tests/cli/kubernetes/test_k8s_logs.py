"""`antefix k8s logs` against the Kubernetes API of tests/k8s/api.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from tests.k8s.api import Api
from tests.k8s.log_objects import POOLS, log_pod, log_service
from tests.k8s.objects import NAMESPACE, RAYSERVICES

GATEWAY, ENGINE, OTHER, HEAD = "x-gateway-1", "x-small-1", "x-large-1", "x-head"
ENDED: dict[str, object] = {
    "timestamp": "2026-05-01T10:00:00.123+00:00",
    "level": "INFO",
    "message": "request ended",
    "component": "gateway",
    "request_id": "r-1",
    "pool": "small",
    "outcome": "ok",
    "status": 200,
}
OF_LARGE = {**ENDED, "request_id": "r-2", "pool": "large"}
OVERFLOWED = {**OF_LARGE, "request_id": "r-3", "served_by_pool": "small"}
IN_ENGINE = {**ENDED, "message": "request ended in the engine", "component": "engine"}
OF_VLLM = {"level": "INFO", "message": "chatcmpl-r-1-7f aborted", "component": "engine"}
OF_CONTROLLER = {"level": "INFO", "message": "Adding 1 replica", "component": "controller"}
OF_RAY = {"message": "Node is alive", "component": "head"}
BANNER = "Ray runtime started."


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    engines = [
        log_pod(name, "engine", pool) for name, pool in zip((ENGINE, OTHER), POOLS, strict=True)
    ]
    pods = (log_pod(HEAD, "head"), log_pod(GATEWAY, "gateway"), *engines)
    with Api(RAYSERVICES, log_service(), *pods) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


@pytest.fixture
def written(api: Api) -> Api:
    """A cluster in which each pod has written its lines."""
    api.write_log(HEAD, NAMESPACE, BANNER)
    for pod, line in (
        *((HEAD, OF_RAY), (HEAD, OF_CONTROLLER)),
        *((ENGINE, OF_VLLM), (ENGINE, IN_ENGINE), (GATEWAY, ENDED)),
        *((OTHER, {**IN_ENGINE, "request_id": "r-2"}), (GATEWAY, OF_LARGE), (GATEWAY, OVERFLOWED)),
    ):
        api.write_log(pod, NAMESPACE, json.dumps(line))
    return api


def logs(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["k8s", "logs", "-n", NAMESPACE, *arguments])


def shown(*arguments: str) -> list[dict[str, object]]:
    """The JSON lines that the command prints."""
    done = logs("-o", "json", *arguments)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_of_all_pods_are_shown_in_order_of_time_with_their_pod(written: Api) -> None:
    done = logs()
    pods = [line.partition(" | ")[0] for line in done.stdout.splitlines()]
    assert pods == [HEAD] * 3 + [ENGINE] * 2 + [GATEWAY, OTHER, GATEWAY, GATEWAY]
    assert done.stdout.splitlines()[0] == f"{HEAD} | {BANNER}"
    assert done.stdout.splitlines()[-1].endswith("200, r-3")


def test_the_last_lines_are_shown(written: Api) -> None:
    assert [line["request_id"] for line in shown("--tail", "2")] == ["r-2", "r-3"]
    assert logs("--tail", "0").stdout == ""


def test_a_request_is_found_in_its_gateway_and_its_engine_with_all_fields(written: Api) -> None:
    assert shown("--request", "r-1") == [OF_VLLM, IN_ENGINE, ENDED]
    done = logs("--request", "r-1")
    assert "request_id=r-1 pool=small outcome=ok status=200" in done.stdout


def test_a_request_without_log_lines_is_an_error_with_a_remedy(written: Api) -> None:
    done = logs("--request", "r-9")
    assert done.exit_code == ExitCode.FAILED
    assert "the logs contain no line about request 'r-9'" in done.stderr


def test_a_pool_has_its_engines_lines_and_those_of_its_requests(written: Api) -> None:
    assert shown("--pool", "small") == [OF_VLLM, IN_ENGINE, ENDED, OVERFLOWED]


@pytest.mark.parametrize(
    ("component", "lines"),
    [
        ("gateway", [ENDED, OF_LARGE, OVERFLOWED]),
        ("controller", [OF_CONTROLLER]),
        ("head", [OF_RAY]),
    ],
)
def test_a_component_has_its_lines_only(
    written: Api, component: str, lines: list[dict[str, object]]
) -> None:
    assert shown("--component", component) == lines


def test_a_component_of_a_pool_has_that_pools_lines_only(written: Api) -> None:
    assert shown("--pool", "small", "--component", "engine") == [OF_VLLM, IN_ENGINE]


def test_text_is_shown_unless_json_is_asked_for(written: Api) -> None:
    assert BANNER in logs("--component", "head").stdout
    assert BANNER not in logs("--component", "head", "-o", "json").stdout


def test_older_lines_can_be_left_out(api: Api) -> None:
    api.write_log(GATEWAY, NAMESPACE, json.dumps(ENDED), ago_s=600)
    api.write_log(GATEWAY, NAMESPACE, json.dumps(OF_LARGE), ago_s=60)
    assert shown("--since", "5m") == [OF_LARGE]
    assert shown("--since", "1h") == [ENDED, OF_LARGE]


def test_pods_that_have_not_started_have_no_lines(api: Api) -> None:
    api.write_log(GATEWAY, NAMESPACE, json.dumps(ENDED))
    assert shown() == [ENDED]


def test_without_a_release_the_namespace_is_named(api: Api) -> None:
    api.remove("RayService", "x", NAMESPACE)
    done = logs()
    assert done.exit_code == ExitCode.NOT_RUNNING
    assert f"namespace {NAMESPACE} has no release" in done.stderr


def test_without_permission_to_read_logs_the_error_names_it(written: Api) -> None:
    written.forbid("get", "pods/log")
    done = logs()
    assert done.exit_code == ExitCode.FAILED
    assert f"may not get pods/log in namespace {NAMESPACE}" in done.stderr


def test_new_lines_are_followed_until_ctrl_c(written: Api) -> None:
    command = [sys.executable, "-c", "from cli.main import app; app()", "k8s", "logs"]
    asked = ["-n", NAMESPACE, "--follow", "--tail", "1", "-o", "json"]
    with subprocess.Popen([*command, *asked], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline()) == OVERFLOWED
        late = {**ENDED, "request_id": "r-4"}
        written.write_log(GATEWAY, NAMESPACE, json.dumps(late))
        assert json.loads(following.stdout.readline()) == late
        os.kill(following.pid, signal.SIGINT)
        assert following.wait() == ExitCode.INTERRUPTED
