import dataclasses
import stat
import threading
from pathlib import Path

import pytest

from cli.local.home import FleetState, Home, home_folder
from common.errors import Problem

STATE = FleetState(
    run_id="r",
    fleet_file="laptop",
    fleet_digest="d",
    host="127.0.0.1",
    port=8000,
    base_url="http://127.0.0.1:8000/v1",
    model="m",
    drain_timeout_s=1.0,
    started_at=0.0,
    redis_url="redis://:password@127.0.0.1:1/0",
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ANTEFIX_HOME": "/a", "XDG_STATE_HOME": "/x"}, "/a"),
        ({"XDG_STATE_HOME": "/x"}, "/x/antefix"),
        ({"HOME": "/h"}, "/h/.local/state/antefix"),
    ],
)
def test_the_environment_chooses_the_folder(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTEFIX_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert home_folder() == Path(expected)


def test_only_the_user_can_read_the_home_folder(home: Home) -> None:
    home.save_state(STATE)
    home.keys()
    home.ray_token_file()
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in home.folder.iterdir()}
    assert modes == {"keys.json": 0o600, "logs": 0o700, "ray-token": 0o600, "state.json": 0o600}
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700


def test_a_state_is_read_back_as_it_was_saved(home: Home) -> None:
    assert home.state() is None
    home.save_state(STATE)
    home.save_state(dataclasses.replace(STATE, ready=True))
    assert home.state() == dataclasses.replace(STATE, ready=True)
    home.forget_state()
    home.forget_state()
    assert home.state() is None


def test_keys_and_token_are_kept_after_the_fleet_ends(home: Home) -> None:
    keys, token = home.keys(), home.ray_token_file().read_text()
    home.forget_state()
    again = Home(home.folder)
    assert again.keys() == keys
    assert again.ray_token_file().read_text() == token


def test_two_homes_have_different_keys(home: Home, tmp_path: Path) -> None:
    assert Home(tmp_path / "other").keys() != home.keys()


def test_no_secret_is_in_a_repr(home: Home) -> None:
    keys = home.keys()
    assert keys.api_key not in repr(keys)
    assert "password" not in repr(STATE)


@pytest.mark.parametrize("text", ["{", "[]", '{"unknown": 1}'])
def test_a_damaged_state_file_is_reported_with_the_remedy(home: Home, text: str) -> None:
    (home.folder / "state.json").write_text(text)
    with pytest.raises(Problem, match=r"state\.json is damaged") as error:
        home.state()
    assert error.value.remedy == f"remove it: rm {home.folder / 'state.json'}"


def test_a_home_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Problem, match="set ANTEFIX_HOME"):
        Home(tmp_path / "file" / "home")


def test_only_one_command_at_a_time_holds_the_home_folder(home: Home) -> None:
    told = threading.Event()
    order: list[str] = []

    def second() -> None:
        with Home(home.folder).turn(told.set):
            order.append("second")

    with home.turn(lambda: None):
        other = threading.Thread(target=second)
        other.start()
        assert told.wait(60)
        order.append("first")
    other.join(60)
    assert order == ["first", "second"]
