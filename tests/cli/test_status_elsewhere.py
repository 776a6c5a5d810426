"""`antefix status --base-url` reads a gateway that is not of this machine's fleet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from tests.cli.fake_gateway import KEY, FakeGateway, running
from tests.ports import free_ports


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with running() as gateway:
        yield gateway


def status(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["status", *arguments])


def test_status_shows_the_replicas_and_the_address_of_the_web_ui(gateway: FakeGateway) -> None:
    result = status("--base-url", gateway.base_url)
    assert result.exit_code == ExitCode.OK
    words = " ".join(result.stdout.split())
    page = f"web UI http://127.0.0.1:{gateway.port}/antefix/"
    for shown in ("test", f"base URL {gateway.base_url}", page, "abc", "1.50 s"):
        assert shown in words


def test_json_output_has_the_base_url(gateway: FakeGateway) -> None:
    told = json.loads(status("--base-url", gateway.base_url, "-o", "json").stdout)
    assert told["base_url"] == gateway.base_url and "engine" in told["pools"]


def test_a_pool_without_replicas_is_reported_by_the_exit_code(gateway: FakeGateway) -> None:
    gateway.states = {"STARTING": 1}
    assert status("--base-url", gateway.base_url).exit_code == ExitCode.NOT_READY


def test_a_wrong_key_is_named_with_the_remedy(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    result = status("--base-url", gateway.base_url)
    assert result.exit_code == ExitCode.FAILED
    assert "wrong key\nRemedy: set OPENAI_API_KEY to a key of that fleet" in result.stderr


def test_the_error_for_an_unreachable_server_names_no_local_command(gateway: FakeGateway) -> None:
    (port,) = free_ports(1)
    result = status("--base-url", f"http://127.0.0.1:{port}/v1")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "could not connect" in result.stderr and "antefix logs" not in result.stderr


def test_an_invalid_base_url_is_rejected(gateway: FakeGateway) -> None:
    result = status("--base-url", "llm.example.com")
    assert "--base-url 'llm.example.com' is not an address" in result.stderr


def test_without_a_fleet_here_the_remedy_names_the_option(gateway: FakeGateway) -> None:
    result = status()
    assert result.exit_code == ExitCode.NOT_RUNNING
    assert "antefix up" in result.stderr and "--base-url" in result.stderr


def test_an_api_key_without_a_base_url_is_rejected(gateway: FakeGateway) -> None:
    result = status("--api-key", KEY)
    assert result.exit_code == ExitCode.USAGE and "--base-url" in result.stderr
