"""Hints name commands that work for the fleet that they are about."""

from pathlib import Path

import pytest

from cli.common.gateway_client import GatewayClient, GatewayError
from cli.common.hints import is_here, logs_of, status_of
from cli.local.home import FleetState, Home
from tests.ports import free_ports


class _State(FleetState):
    """Only the address matters."""

    def __init__(self, base_url: str) -> None:
        object.__setattr__(self, "base_url", base_url)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path))
    monkeypatch.setattr(Home, "state", lambda self: _State("http://127.0.0.1:8000/v1"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.0.0.1:8000/v1/", True),
        ("http://127.0.0.1:8000", True),
        ("http://127.0.0.1:8001/v1", False),
        ("https://llm.example.com/v1", False),
    ],
)
def test_only_hints_about_a_local_fleet_name_local_commands(url: str, expected: bool) -> None:
    assert is_here(url) == expected
    assert (logs_of(url) == "see antefix logs") == expected
    assert (status_of(url) == "antefix status") == expected


def test_without_a_local_fleet_every_fleet_counts_as_remote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Home, "state", lambda self: None)
    assert not is_here("http://127.0.0.1:8000/v1")


REFUSED = "Connection refused"
CHECK_ADDRESS = "check the address, and that the server or kubectl port-forward is running"


def test_hints_about_an_unreachable_remote_gateway_name_no_local_command() -> None:
    (port,) = free_ports(1)
    with pytest.raises(GatewayError) as failed:
        GatewayClient(f"http://127.0.0.1:{port}", "key").status()
    assert failed.value.message == f"could not connect to http://127.0.0.1:{port}: {REFUSED}"
    assert failed.value.remedy == CHECK_ADDRESS
