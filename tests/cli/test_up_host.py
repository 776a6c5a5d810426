"""`antefix up --host` chooses which machines may reach the gateways."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cli.fleet import starting, up
from cli.local.home import FleetState, Home
from cli.local.ports import LOOPBACK
from deployments.fleet.fleet_file import parse_fleet

FLEET = "name: test\npools: {engine: {model: embedded}}\n"
STATE = FleetState(
    run_id="none",
    fleet_file="test.yaml",
    fleet_digest="",
    host="0.0.0.0",
    host_given=True,
    port=8017,
    base_url="http://127.0.0.1:8017/v1",
    model="small",
    drain_timeout_s=1.0,
    started_at=0.0,
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return str(tmp_path / "fleet.yaml")


def test_the_host_option_overrides_the_fleet_file(file: str) -> None:
    assert starting.wanted(file, None, None, host="0.0.0.0").host == "0.0.0.0"
    assert starting.wanted(file, None, None).host == LOOPBACK


def test_the_fleet_is_deployed_at_the_address_that_was_chosen() -> None:
    fleet = parse_fleet(FLEET, "test.yaml")
    assert starting.listening_on(fleet, STATE).gateway.host == "0.0.0.0"


def test_an_address_of_another_machine_is_rejected_and_the_option_is_named(file: str) -> None:
    wanted = starting.wanted(file, 0, None, host="192.0.2.7")
    with pytest.raises(Exception, match=r"cannot listen on 192\.0\.2\.7") as refused:
        starting.start(Home(), wanted)
    assert "--host" in str(refused.value.__dict__)


def test_the_host_option_does_not_change_the_digest_of_the_fleet(file: str) -> None:
    with_host = starting.wanted(file, None, None, host="0.0.0.0")
    assert with_host.digest == starting.wanted(file, None, None).digest


def test_up_reports_that_a_running_fleet_keeps_its_address(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = starting.wanted(file, None, None, host=LOOPBACK)
    home = Home()
    home.save_state(dataclasses.replace(STATE, fleet_digest=wanted.digest))
    monkeypatch.setattr(starting, "is_running", lambda home, state: True)
    assert starting.start(home, wanted).answer is None
    assert "port 8017 of 0.0.0.0" in capsys.readouterr().err


def test_up_prints_the_address_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "own_address", lambda: "192.0.2.7")
    assert up.elsewhere(STATE) == "http://192.0.2.7:8017/v1, over plain HTTP"


@pytest.mark.parametrize(
    ("host", "own"), [(LOOPBACK, "192.0.2.7"), ("192.0.2.7", "192.0.2.7"), ("0.0.0.0", "")]
)
def test_up_prints_no_second_address_when_the_base_url_has_it(
    host: str, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "own_address", lambda: own)
    assert up.elsewhere(dataclasses.replace(STATE, host=host)) == ""
