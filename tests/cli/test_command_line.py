"""What every command of `antefix` takes, and how it refuses what it does not."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

from cli.exit_codes import ExitCode
from cli.main import app

DEAD = "http://127.0.0.1:9/v1"


def antefix(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command by its words, groups included."""
    if not isinstance(command, TyperGroup):
        return [path]
    return [
        path,
        *(one for name, sub in command.commands.items() for one in commands(sub, (*path, name))),
    ]


EVERY = commands(typer.main.get_command(app))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTEFIX_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_shows_its_help(words: tuple[str, ...], flag: str) -> None:
    result = antefix(*words, flag)
    assert result.exit_code == ExitCode.OK
    assert " ".join(("Usage: antefix", *words)) in result.stdout


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_no_flag_is_shown_as_if_it_took_a_value(words: tuple[str, ...]) -> None:
    assert "bool" not in antefix(*words, "-h").stdout


@pytest.mark.parametrize("asked", ["--version", "version"])
def test_the_version_names_what_a_report_of_a_bug_needs(asked: str) -> None:
    result = antefix(asked)
    assert result.exit_code == ExitCode.OK
    version = importlib.metadata.version("antefix")
    assert result.stdout.startswith(f"antefix {version} (Python {platform.python_version()}, ray ")
    assert result.stdout.count("\n") == 1


REFUSED = {
    "statu": "No such command 'statu'. Did you mean 'status'?",
    "nonsense": "No such command 'nonsense'; antefix -h lists its arguments and options",
    "k8s nonsense": "No such command 'nonsense'; antefix k8s -h lists its arguments and options",
    "status --jso": "No such option: --jso (Possible options: --json)",
    "status extra": "Got unexpected extra argument(s) (extra); "
    "antefix status -h lists its arguments and options",
    "keys revoke": "Missing argument 'ID'; antefix keys revoke -h lists its arguments and options",
    "plan": "Missing option '--model'; antefix plan -h lists its arguments and options",
    "up --port x": "Invalid value for '--port': Input should be a valid integer, unable to parse "
    "string as an integer, not 'x'; antefix up -h lists its arguments and options",
    "up --port 70000": "Invalid value for '--port': Input should be less than or equal to 65535, "
    "not '70000'; antefix up -h lists its arguments and options",
    "keys create a --priority x": "Invalid value for '--priority': 'x' is not one of "
    "'interactive', 'batch'; antefix keys create -h lists its arguments and options",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_command_line_is_one_line_with_what_to_do(line: str) -> None:
    result = antefix(*line.split())
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert result.stderr == f"{REFUSED[line]}\n"


def test_a_wrong_command_line_with_json_is_one_json_object() -> None:
    result = antefix("status", "extra", "--json")
    assert (result.exit_code, result.stderr) == (ExitCode.USAGE, "")
    assert json.loads(result.stdout)["error"]["code"] == "usage"


def test_a_group_without_a_command_shows_its_help_and_no_error() -> None:
    result = antefix("keys")
    assert result.exit_code == ExitCode.USAGE
    assert "Usage: antefix keys" in result.output
    assert "lists its arguments and options" not in result.output


WRONG_NAMES = {
    "quantize ./nosuch": "the model folder './nosuch' does not exist",
    "quantize nosuch": "config.json of 'nosuch' cannot be downloaded",
    "evaluate nosuch embedded": "config.json of 'nosuch' cannot be downloaded",
    "evaluate embedded ./nosuch": "the model folder './nosuch' does not exist",
    "plan --model nosuch --gpu foo": "the GPU 'foo' is unknown",
    "plan --model nosuch --gpu h100": "no config.json of 'nosuch' is on this machine",
    "plan --model embedded --gpu h100": "--context is missing",
    "plan --model embedded --gpu h100 --context 4096": "no load was given",
}


@pytest.mark.parametrize("line", WRONG_NAMES)
def test_a_wrong_name_is_reported_before_other_problems(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    # otherwise the Hub's client tries again for 24 s where it cannot be reached
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = antefix(*line.split())
    assert result.exit_code in (ExitCode.USAGE, ExitCode.FAILED)
    assert result.stderr.startswith(WRONG_NAMES[line])
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        f"chat --base-url {DEAD} hi",
        f"chat --base-url {DEAD} --api-key k --model m hi",
        f"verify --base-url {DEAD} --timeout 0",
        f"bench --base-url {DEAD}",
    ],
)
def test_a_dead_server_is_named_as_such(line: str) -> None:
    result = antefix(*line.split())
    assert result.exit_code == ExitCode.FAILED
    last = result.stderr.splitlines()[-1]
    assert "http://127.0.0.1:9/" in last and ".;" not in last
    assert "check --base-url" in last and "that the server runs" in last


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:9", "http://[::1", "http://", "ftp://a/v1"])
@pytest.mark.parametrize("command", ["chat hi", "verify", "bench"])
def test_an_invalid_address_is_refused_with_a_valid_example(command: str, url: str) -> None:
    result = antefix(*command.split(), "--base-url", url)
    assert result.exit_code == ExitCode.FAILED
    assert result.stderr == (
        f"--base-url {url!r} is not an address of an OpenAI API; "
        "write one like http://127.0.0.1:8000/v1\n"
    )


def test_an_address_of_the_environment_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "nonsense")
    assert antefix("chat", "hi").stderr.startswith("OPENAI_BASE_URL 'nonsense' is not an address")
