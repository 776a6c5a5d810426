"""`antefix grafana` against a fake Grafana."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from observability.grafana import SHIPPED
from tests.fakes.grafana import FakeGrafana, running_grafana


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGrafana]:
    with running_grafana() as fake:
        monkeypatch.setenv("GRAFANA_URL", fake.url)
        monkeypatch.setenv("GRAFANA_TOKEN", "glsa_editor")
        monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
        yield fake


def antefix_grafana(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["grafana", *arguments])


def test_a_push_reports_its_changes_and_a_second_push_reports_none(
    fake: FakeGrafana,
) -> None:
    first = antefix_grafana("push")
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout.splitlines() == [
        "Capacity: created",
        "Engine: created",
        "Fleet SLO: created",
        "Routing: created",
        "Tenants: created",
    ]
    second = antefix_grafana("push")
    assert set(second.stdout.splitlines()) == {
        line.replace("created", "unchanged") for line in first.stdout.splitlines()
    }
    assert len(fake.saves) == 5
    assert [folder["title"] for folder in fake.folders] == ["Antefix"]


def test_a_dry_run_changes_nothing(fake: FakeGrafana, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", "glsa_admin")
    done = antefix_grafana("push", "--dry-run", "--datasource-url", "http://prometheus:9090")
    assert "Routing: would be created" in done.stdout
    assert "data source Antefix: would be updated" in done.stdout
    assert (fake.folders, fake.saves, fake.sources) == ([], [], [])


def test_a_push_keeps_and_reports_an_edit_in_grafana_until_it_is_forced(fake: FakeGrafana) -> None:
    antefix_grafana("push")
    fake.edit("Routing", author="jo", description="mine")
    kept = antefix_grafana("push")
    assert kept.exit_code == 1
    assert "Routing: kept" in kept.stdout
    assert "Routing was edited in Grafana by jo since the last push, and kept" in kept.stderr
    assert fake.dashboard("Routing")["description"] == "mine"
    forced = antefix_grafana("push", "--force")
    assert forced.exit_code == 0 and "Routing: updated" in forced.stdout
    assert fake.dashboard("Routing")["description"] != "mine"


def test_a_push_reports_the_same_as_json(fake: FakeGrafana) -> None:
    antefix_grafana("push")
    fake.edit("Routing", author="jo", description="mine")
    done = antefix_grafana("push", "-o", "json")
    told = json.loads(done.stdout)
    assert done.exit_code == 1
    assert told["folder"] == "Antefix"
    assert {"title": "Routing", "result": "kept", "by": "jo"} in told["dashboards"]


def test_a_diff_exits_0_when_there_is_none_and_1_when_there_is(fake: FakeGrafana) -> None:
    new = antefix_grafana("diff")
    assert new.exit_code == 1 and "Routing: missing in Grafana" in new.stderr
    antefix_grafana("push")
    same = antefix_grafana("diff")
    assert (same.exit_code, same.stdout) == (0, "")
    fake.edit("Routing", author="jo", description="mine")
    edited = antefix_grafana("diff")
    assert edited.exit_code == 1
    assert '-  "description": "mine",' in edited.stdout
    assert "Routing: edited in Grafana, by jo" in edited.stderr
    told = json.loads(antefix_grafana("diff", "-o", "json").stdout)
    assert told["different"] is True
    states = {dashboard["title"]: dashboard["state"] for dashboard in told["dashboards"]}
    assert states == {
        "Capacity": "same",
        "Engine": "same",
        "Fleet SLO": "same",
        "Routing": "edited",
        "Tenants": "same",
    }


def test_unedited_dashboards_are_pulled_byte_for_byte(fake: FakeGrafana, tmp_path: Path) -> None:
    antefix_grafana("push")
    assert antefix_grafana("pull", "--output-dir", str(tmp_path / "out")).exit_code == 0
    pulled = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert pulled == {path.name: path.read_text() for path in SHIPPED.iterdir()}


def test_a_pulled_edit_is_no_longer_a_difference(fake: FakeGrafana, tmp_path: Path) -> None:
    antefix_grafana("push")
    fake.edit("Routing", description="mine")
    antefix_grafana("pull", "--output-dir", str(tmp_path))
    assert json.loads((tmp_path / "routing.json").read_text())["description"] == "mine"
    assert antefix_grafana("diff", "--dir", str(tmp_path)).exit_code == 0
    assert "Routing: unchanged" in antefix_grafana("push", "--dir", str(tmp_path)).stdout


def test_custom_dashboards_are_pushed_to_a_custom_folder(fake: FakeGrafana, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"title": "Mine"}')
    done = antefix_grafana("push", "--dir", str(tmp_path), "--folder", "Team")
    assert done.stdout == "Mine: created\n"
    assert [folder["title"] for folder in fake.folders] == ["Team"]


@pytest.mark.parametrize("missing", ["GRAFANA_URL", "GRAFANA_TOKEN"])
def test_a_missing_setting_is_reported_with_a_valid_example(
    fake: FakeGrafana, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    done = antefix_grafana("push")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {missing} is not set\nRemedy: ")
    assert "glsa_editor" not in done.output


@pytest.mark.parametrize(
    "arguments", [("push",), ("diff",), ("pull", "--output-dir", "x")], ids=["push", "diff", "pull"]
)
def test_an_unreachable_grafana_is_an_error_with_its_remedy(
    fake: FakeGrafana, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GRAFANA_URL", "http://127.0.0.1:1")
    done = antefix_grafana(*arguments)
    assert done.exit_code == ExitCode.FAILED
    assert done.stderr == (
        "Error: Grafana does not answer at http://127.0.0.1:1\n"
        "Remedy: check GRAFANA_URL, and that Grafana runs\n"
    )
    told = json.loads(antefix_grafana(*arguments, "-o", "json").stdout)
    assert told["error"]["message"] == "Grafana does not answer at http://127.0.0.1:1"


def test_pulling_from_a_folder_that_is_not_there_is_explained(
    fake: FakeGrafana, tmp_path: Path
) -> None:
    done = antefix_grafana("pull", "--output-dir", str(tmp_path / "out"))
    assert done.exit_code == ExitCode.FAILED
    assert "Grafana has no folder Antefix\nRemedy: name another --folder" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_command_line_does_not_import_the_grafana_client() -> None:
    code = (
        "import sys, cli.main;"
        "print([m for m in ('grafana_client', 'grafana_foundation_sdk') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
