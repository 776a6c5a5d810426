"""`antefix k8s key` against the Kubernetes API of tests/k8s/api.py."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from deployments.gateway.intake.keys_file import new_key, stored
from tests.k8s.api import Api
from tests.k8s.objects import NAMESPACE, named
from tests.k8s.release_objects import release


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    with Api(*release()) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


def key_of(api: Api, *lines: str) -> Result:
    """What the command prints if the release's Secret has these lines."""
    data = {"api-keys": base64.b64encode("\n".join(lines).encode()).decode()}
    api.add(named("v1", "Secret", "afx-antefix-auth", NAMESPACE, data=data))
    return CliRunner().invoke(app, ["k8s", "key", "afx", "-n", NAMESPACE])


def test_the_key_of_a_release_is_all_that_is_printed(api: Api) -> None:
    hashed = stored("other", new_key()).line()
    done = key_of(api, hashed, "default=0123456789abcdef")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "0123456789abcdef\n", "")


def test_a_release_that_has_only_hashes_of_keys_is_one_clear_error(api: Api) -> None:
    done = key_of(api, stored("default", new_key()).line())
    assert (done.exit_code, done.stdout) == (ExitCode.FAILED, "")
    assert done.stderr.startswith(
        "Error: Secret afx-antefix-auth contains no API key in plain text\n"
        "Remedy: add a line of the form tenant=key"
    )
