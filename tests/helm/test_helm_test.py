"""The pod that `helm test` runs."""

import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from cli.common.exit_codes import ExitCode
from tests.helm.fleets import values
from tests.helm.helm import Object, all_of_kind, of_kind, render
from tests.ports import free_ports

NAME = "afx-antefix"


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return render(values(service={"port": 8443}))


@pytest.fixture(scope="module")
def container(objects: list[Object]) -> dict[str, Any]:
    (found,) = of_kind(objects, "Pod")["spec"]["containers"]
    container: dict[str, Any] = found
    return container


def test_the_test_pod_runs_only_on_helm_test_and_is_kept_only_after_a_failure(
    objects: list[Object],
) -> None:
    assert of_kind(objects, "Pod")["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }


def test_the_test_pod_calls_the_service(objects: list[Object], container: dict[str, Any]) -> None:
    (service,) = [s for s in all_of_kind(objects, "Service") if s["metadata"]["name"] == NAME]
    (port,) = service["spec"]["ports"]
    address = f"http://{service['metadata']['name']}:{port['port']}/v1"
    assert f"--base-url={address}" in container["args"]


def test_the_test_pod_reads_the_keys_from_the_charts_secret(
    objects: list[Object], container: dict[str, Any]
) -> None:
    (mount,) = container["volumeMounts"]
    (volume,) = of_kind(objects, "Pod")["spec"]["volumes"]
    secret = of_kind(objects, "Secret", volume["secret"]["secretName"])
    (item,) = volume["secret"]["items"]
    assert volume["name"] == mount["name"]
    assert item["key"] in secret["data"]
    assert f"--api-key-file={mount['mountPath']}/{item['path']}" in container["args"]


def test_the_command_line_accepts_the_arguments_of_the_test_pod(
    objects: list[Object], container: dict[str, Any], tmp_path: Path
) -> None:
    keys = tmp_path / "api-keys"
    keys.write_bytes(b64decode(of_kind(objects, "Secret", "-auth")["data"]["api-keys"]))
    (closed,) = free_ports(1)
    here = {
        "--base-url": f"--base-url=http://127.0.0.1:{closed}/v1",
        "--api-key-file": f"--api-key-file={keys}",
        "--timeout": "--timeout=0",
    }
    command, *subcommand = container["command"]
    arguments = [here[argument.partition("=")[0]] for argument in container["args"]]
    done = subprocess.run(
        [Path(sys.executable).with_name(command), *subcommand, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    # not USAGE: it understood them, and found no gateway
    assert done.returncode == ExitCode.UNREACHABLE, done.stderr
    assert str(closed) in done.stderr
