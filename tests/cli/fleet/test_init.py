"""`antefix init`, and the fleet file that `antefix up --model` writes."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.fleet.starter_fleet import name_of, starter_fleet
from cli.fleet.up import fleet_file
from cli.local.home import Home
from cli.main import app
from deployments.fleet.fleet_file import parse_fleet
from tests.shipped import FLEET_FILES, ROOT
from tests.some import some

SCHEMA = json.loads((ROOT / "fleets" / "fleet.schema.json").read_text())


@pytest.mark.parametrize("on_cpus", [True, False])
def test_the_starter_fleet_is_valid(on_cpus: bool) -> None:
    text = starter_fleet("Qwen/Qwen3-0.6B", on_cpus)
    fleet = parse_fleet(text, check_engine_args=False)
    assert fleet.name == "qwen3-0-6b"
    assert fleet.pools["chat"].model == "Qwen/Qwen3-0.6B"
    jsonschema.validate(yaml.safe_load(text), SCHEMA)


def test_an_existing_file_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("mine")
    refused = CliRunner().invoke(app, ["init", "--output-file", str(file)])
    assert refused.exit_code == ExitCode.FAILED
    assert f"{file} already exists" in refused.stderr and "--force" in refused.stderr
    assert file.read_text() == "mine"
    assert CliRunner().invoke(app, ["init", "--output-file", str(file), "--force"]).exit_code == 0
    assert "model: embedded" in file.read_text()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = CliRunner().invoke(
        app, ["init", "--output-file", str(tmp_path / "file" / "fleet.yaml")]
    )
    assert refused.exit_code == ExitCode.FAILED
    assert "cannot be written" in refused.stderr


def test_a_folder_with_a_model_is_named_absolutely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    done = CliRunner().invoke(app, ["init", "./model", "-o", "json"])
    assert done.exit_code == 0, done.output
    written = parse_fleet((tmp_path / "fleet.yaml").read_text(), check_engine_args=False)
    assert written.pools["chat"].model == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("model", "name"),
    [("embedded", "embedded"), ("org/A_b.C-1", "a-b-c-1"), ("/models/", "models")],
)
def test_the_fleet_is_named_after_the_model(model: str, name: str) -> None:
    assert name_of(model) == name


def test_up_writes_the_fleet_of_a_model_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    file = Path(fleet_file(home, None, "embedded"))
    assert file == tmp_path / "fleets" / "embedded.yaml"
    file.write_text(file.read_text().replace("replicas: 1", "replicas: 2"))
    assert fleet_file(home, None, "embedded") == str(file)
    assert "replicas: 2" in file.read_text()
    assert fleet_file(home, None, None) == "laptop"
    assert fleet_file(home, "mine.yaml", None) == "mine.yaml"


def test_a_fleet_and_a_model_are_not_both_started() -> None:
    refused = CliRunner().invoke(app, ["up", "laptop", "--model", "embedded"])
    assert refused.exit_code == ExitCode.USAGE
    assert "cannot be used together" in refused.stderr


def test_editors_get_the_schema_of_every_shipped_fleet() -> None:
    """If it fails: make reference."""
    printed = CliRunner().invoke(app, ["config", "schema"]).stdout
    assert (ROOT / "fleets" / "fleet.schema.json").read_text() == printed
    for file in some(FLEET_FILES):
        text = file.read_text()
        assert text.startswith("# yaml-language-server: $schema=fleet.schema.json\n")
        jsonschema.validate(yaml.safe_load(text), SCHEMA)
