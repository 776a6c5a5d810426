"""What every command of `antefix` takes, and how it refuses what it does not."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.common.replaced_options import replacement
from cli.main import app
from tests.some import some

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
def test_help_names_values_instead_of_types(words: tuple[str, ...]) -> None:
    assert not re.findall(r"\bbool\b|<(?:str|int|float|path|list)\b", antefix(*words, "-h").stdout)


@pytest.mark.parametrize("asked", ["--version", "version"])
def test_version_prints_what_a_bug_report_needs(asked: str) -> None:
    result = antefix(asked)
    assert result.exit_code == ExitCode.OK
    version = importlib.metadata.version("antefix")
    assert result.stdout.startswith(f"antefix {version} (Python {platform.python_version()}, ray ")
    assert result.stdout.count("\n") == 1


REFUSED = {
    "statu": "No such command 'statu'\nRemedy: did you mean 'status'?",
    "keys list": "No such command 'keys'\nRemedy: did you mean 'key'?",
    "nonsense": "No such command 'nonsense'; antefix -h lists its arguments and options",
    "k8s nonsense": "No such command 'nonsense'; antefix k8s -h lists its arguments and options",
    "status --outpu": "No such option: --outpu\nRemedy: did you mean --output?",
    "verify --timeout 5x": "Invalid value for '--timeout': '5x' is not a duration such as 90s, 5m "
    "or 1h30m; antefix verify -h lists its arguments and options",
    "status extra": "Got unexpected extra argument(s) (extra); "
    "antefix status -h lists its arguments and options",
    "key revoke": "Missing argument 'ID'; antefix key revoke -h lists its arguments and options",
    "plan": "Missing argument 'MODEL'; antefix plan -h lists its arguments and options",
    "up --port x": "Invalid value for '--port': Input should be a valid integer, unable to parse "
    "string as an integer, not 'x'; antefix up -h lists its arguments and options",
    "up --port 70000": "Invalid value for '--port': Input should be less than or equal to 65535, "
    "not '70000'; antefix up -h lists its arguments and options",
    "key create a --priority x": "Invalid value for '--priority': 'x' is not one of "
    "'interactive', 'batch'; antefix key create -h lists its arguments and options",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_command_line_is_an_error_with_its_remedy(line: str) -> None:
    result = antefix(*line.split())
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert result.stderr == f"Error: {REFUSED[line].replace('; ', chr(10) + 'Remedy: ')}\n"


@pytest.mark.parametrize(
    ("line", "now"),
    [
        ("status --json", "-o json"),
        ("k8s status --json", "-o json"),
        ("k8s status --release afx", "an argument: antefix k8s status RELEASE"),
        ("logs -n 50", "--tail"),
        ("bench --seconds 60", "--duration, such as 5m"),
        ("plan embedded --context 4096", "--context-tokens"),
        ("evaluate a b --apart", "--sequential"),
        ("evaluate a b --report c", "--output-dir"),
        ("grafana pull --out c", "--output-dir"),
        ("init --out c", "--output-file"),
        ("k8s accept --report c", "--output-dir"),
        ("quantize a --out c", "--output-dir"),
        ("slo render --out c", "--output-dir"),
    ],
)
def test_the_error_for_a_former_option_names_its_replacement(line: str, now: str) -> None:
    result = antefix(*line.split())
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert result.stderr.startswith("Error: No such option: -")
    assert result.stderr.endswith(f"\nRemedy: use {now}\n")


def test_no_former_option_exists() -> None:
    """Otherwise its entry would never be shown; `plan --output` has another meaning now."""
    root = typer.main.get_command(app)
    checked = 0
    for words in some(EVERY):
        command: Any = root
        for word in words:
            command = command.commands[word]
        name = " ".join(words)
        for option in (option for one in command.params for option in one.opts):
            checked += 1
            assert replacement(name, option) is None or (name, option) == ("plan", "--output")
    assert checked > 100


@pytest.mark.parametrize("asked", [("-o", "json"), ("--output=json",), ("-ojson",)])
def test_a_wrong_command_line_with_json_is_one_json_object(asked: tuple[str, ...]) -> None:
    result = antefix("status", "extra", *asked)
    assert (result.exit_code, result.stderr) == (ExitCode.USAGE, "")
    assert json.loads(result.stdout)["error"]["code"] == "usage"


def test_yaml_output_is_the_same_object_as_json_output() -> None:
    as_json = antefix("status", "-o", "json").stdout
    assert yaml.safe_load(antefix("status", "-o", "yaml").stdout) == json.loads(as_json)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_argument_is_in_upper_case(words: tuple[str, ...]) -> None:
    (usage,) = re.findall("Usage: antefix(.*)", antefix(*words, "-h").stdout)
    named = re.findall(r"[{\[](\w+)[}\]]", usage)
    assert [name.upper() for name in named] == named


def test_a_group_without_a_command_shows_its_help_and_no_error() -> None:
    result = antefix("key")
    assert result.exit_code == ExitCode.USAGE
    assert "Usage: antefix key" in result.output
    assert "lists its arguments and options" not in result.output


WRONG_NAMES = {
    "quantize ./nosuch": "the model folder './nosuch' does not exist",
    "quantize nosuch": "config.json of 'nosuch' cannot be downloaded",
    "evaluate nosuch embedded": "config.json of 'nosuch' cannot be downloaded",
    "evaluate embedded ./nosuch": "the model folder './nosuch' does not exist",
    "plan nosuch --gpu foo": "the GPU 'foo' is unknown",
    "plan nosuch --gpu h100": "no config.json of 'nosuch' is on this machine",
    "plan embedded --gpu h100": "--context-tokens is missing",
    "plan embedded --gpu h100 --context-tokens 4096": "no load was given",
}


@pytest.mark.parametrize("line", WRONG_NAMES)
def test_a_wrong_name_is_reported_before_other_problems(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    # otherwise the Hub's client tries again for 24 s where it cannot be reached
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = antefix(*line.split())
    assert result.exit_code in (ExitCode.USAGE, ExitCode.FAILED)
    assert result.stderr.startswith(f"Error: {WRONG_NAMES[line]}")
    assert result.stderr.count("\n") == 2


@pytest.mark.parametrize(
    "line",
    [
        f"chat --base-url {DEAD} hi",
        f"chat --base-url {DEAD} --api-key k --model m hi",
        f"verify --base-url {DEAD} --timeout 0",
        f"bench --base-url {DEAD}",
    ],
)
def test_the_error_states_that_a_server_is_down(line: str) -> None:
    result = antefix(*line.split())
    assert result.exit_code == ExitCode.UNREACHABLE
    error, remedy = result.stderr.splitlines()[-2:]
    assert error.startswith("Error: ") and "http://127.0.0.1:9" in error
    assert not error.endswith(".") and remedy.startswith("Remedy: ")
    assert "check the address" in remedy and "kubectl port-forward" in remedy


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:9", "http://[::1", "http://", "ftp://a/v1"])
@pytest.mark.parametrize("command", ["chat hi", "verify", "bench"])
def test_an_invalid_address_is_refused_with_a_valid_example(command: str, url: str) -> None:
    result = antefix(*command.split(), "--base-url", url)
    assert result.exit_code == ExitCode.FAILED
    assert result.stderr == (
        f"Error: --base-url {url!r} is not an address of an OpenAI API\n"
        "Remedy: write one like http://127.0.0.1:8000/v1\n"
    )


def test_an_address_of_the_environment_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "nonsense")
    error = antefix("chat", "hi").stderr
    assert error.startswith("Error: OPENAI_BASE_URL 'nonsense' is not an address")
