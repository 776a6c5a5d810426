"""`antefix key`, and gateways that follow what it writes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.main import app
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.api_keys import ApiKeys

PLAIN = "key-of-the-red-tenant"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "api-keys"


def keys(file: Path, *arguments: str, fails: bool = False) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["key", *arguments, "--file", str(file), "-o", "json"])
    assert (result.exit_code != 0) == fails, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def opens(file: Path, key: str) -> str:
    """The tenant; the error's code where it opens nothing."""
    keys = ApiKeys({})
    keys.take(file)
    try:
        return keys.check({"authorization": f"Bearer {key}"}).tenant
    except ApiError as error:
        return error.code


def test_a_created_key_is_accepted_and_is_not_in_the_file(file: Path) -> None:
    made = keys(file, "create", "red")
    assert opens(file, made["key"]) == "red"
    assert made["key"].split("_")[2] not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_list_shows_problems_and_no_key(file: Path) -> None:
    file.write_text(f"red={PLAIN}\nblue=short\n")
    made = keys(file, "create", "green", "--model", "a", "--expires-in", "1d", "--no-overflow")
    told = keys(file, "list")
    assert [(key["tenant"], key["state"]) for key in told["keys"]] == [
        ("red", "plain"),
        ("green", "hashed"),
    ]
    assert told["keys"][1]["rights"]["models"] == ["a"]
    assert "API key 2 is shorter than 16 characters" in told["problems"][0]
    assert PLAIN not in json.dumps(told) and made["key"] not in json.dumps(told)


def test_the_list_is_a_table_and_wide_adds_the_rights(file: Path) -> None:
    file.write_text(f"red={PLAIN}\n")
    keys(file, "create", "green", "--model", "a", "--model", "b", "--no-overflow")
    listed, wide = (
        CliRunner().invoke(app, ["key", "list", "--file", str(file), *more]).stdout.splitlines()
        for more in ((), ("-o", "wide"))
    )
    assert listed[0].split() == ["ID", "TENANT", "STATE", "EXPIRES"]
    assert [line.split()[1:] for line in listed[1:]] == [
        ["red", "plain", "never"],
        ["green", "hashed", "never"],
    ]
    assert wide[0].split()[4:] == ["MODELS", "PRIORITY", "OVERFLOW", "POLICY", "OPERATOR"]
    assert wide[2].split()[4:] == ["a,b", "interactive", "no", "yes", "no"]


def test_an_empty_list_names_its_file_and_the_location_of_the_fleets_key(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(file.parent))
    listed = CliRunner().invoke(app, ["key", "list"])
    assert listed.exit_code == 0
    path = file.parent / "api-keys"
    assert listed.stderr == f"no keys in {path}; `antefix env` prints the key of the fleet itself\n"
    file.write_text("# none\n")
    listed = CliRunner().invoke(app, ["key", "list", "--file", str(file)])
    assert listed.stderr == f"no keys in {file}\n"


def test_a_list_of_a_file_that_does_not_exist_is_refused(file: Path) -> None:
    listed = CliRunner().invoke(app, ["key", "list", "--file", str(file)])
    assert listed.exit_code == ExitCode.FAILED
    assert listed.stderr == f"Error: there is no file {file}\nRemedy: correct --file\n"


def test_a_revoked_key_is_rejected_and_the_others_are_accepted(file: Path) -> None:
    file.write_text(f"# ours\nblue={PLAIN}\n")
    made = keys(file, "create", "red")
    keys(file, "revoke", made["id"])
    assert opens(file, made["key"]) == "revoked_api_key"
    assert opens(file, PLAIN) == "blue"
    assert file.read_text().startswith(f"# ours\nblue={PLAIN}\n")


def test_a_plain_text_key_is_rotated_and_accepted_until_its_grace_period_ends(file: Path) -> None:
    file.write_text(f"red={PLAIN}\n")
    old = keys(file, "list")["keys"][0]["id"]
    made = keys(file, "rotate", old)
    assert opens(file, PLAIN) == opens(file, made["key"]) == "red"
    assert PLAIN not in file.read_text()
    again = keys(file, "rotate", made["id"], "--grace-period", "0")
    assert opens(file, made["key"]) == "expired_api_key"
    assert opens(file, again["key"]) == "red"


def test_rotating_a_key_adds_no_rights_and_no_time(file: Path) -> None:
    first = keys(file, "create", "red", "--priority", "batch", "--expires-in", "1d")
    second = keys(file, "rotate", first["id"])
    assert second["rights"]["priority"] == "batch"
    assert keys(file, "list")["keys"][0]["expires"] == first["expires"]


def test_impossible_changes_of_keys_are_reported(file: Path) -> None:
    assert "no key here has the id" in keys(file, "revoke", "x", fails=True)["error"]["message"]
    assert "not a valid tenant name" in keys(file, "create", "a=b", fails=True)["error"]["message"]
    made = keys(file, "create", "red")
    keys(file, "revoke", made["id"])
    assert "is revoked" in keys(file, "rotate", made["id"], fails=True)["error"]["message"]
    nowhere = keys(file.parent / "none" / "keys", "create", "red", fails=True)
    assert "cannot be changed: No such file" in nowhere["error"]["message"]


def test_without_a_file_option_the_local_fleets_key_file_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["key", "create", "red"])
    assert result.exit_code == 0
    assert opens(tmp_path / "api-keys", result.stdout.strip()) == "red"
