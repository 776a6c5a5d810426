"""`antefix slo` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.main import app
from observability import GENERATED
from observability.alerts.slo_file import SHIPPED
from tests.missing import program

ROOT = Path(__file__).parents[3]


def invoke(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["slo", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_file_that_ships_is_valid() -> None:
    assert program("promtool")
    assert invoke("check") == (0, "the built-in SLO file: valid\n", "")


def test_json_output_lists_the_slos_and_alerts() -> None:
    assert program("promtool")
    code, said, _ = invoke("check", str(SHIPPED), "-o", "json")
    found = json.loads(said)
    assert code == 0
    assert found["queries_checked"] is True
    assert "ttft" in found["slos"] and "AntefixQueueDeep" in found["alerts"]


def test_without_promtool_the_command_reports_that_queries_were_not_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoke("check")[1].endswith(
        "its queries were not checked, because promtool is not on PATH\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("objective: 99.9", "objective: 999", "slos.availability.objective = 999: "),
        ("sum by (pool) (antefix_queue", "sum by pool (antefix_queue", '"AntefixQueueDeep": '),
        ("AntefixQueueDeep", "MyQueueDeep", "the alert MyQueueDeep has no runbook"),
    ],
)
def test_an_error_has_a_remedy(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert program("promtool")
    file = tmp_path / "mine.yaml"
    file.write_text(SHIPPED.read_text().replace(old, new))
    code, _, notes = invoke("check", str(file))
    assert code == ExitCode.INVALID_FILE
    assert says in notes
    assert [line.partition(": ")[0] for line in notes.splitlines()] == ["Error", "Remedy"]


def test_rendering_the_shipped_slo_file_produces_the_shipped_files(tmp_path: Path) -> None:
    code, said, _ = invoke("render", "--output-dir", str(tmp_path))
    assert code == 0, said
    written, shipped = files_in(tmp_path), files_in(GENERATED)
    assert "runbooks/README.md" in written
    assert shipped == {name for name in written if not name.startswith("runbooks/")}
    for name in written:
        folder = ROOT / "docs" if name.startswith("runbooks/") else GENERATED
        assert (tmp_path / name).read_text() == (folder / name).read_text(), "make observability"


def files_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_runbooks_are_written_to_the_given_folder(tmp_path: Path) -> None:
    out, pages = tmp_path / "out", tmp_path / "pages"
    code, said, _ = invoke(
        "render", "--output-dir", str(out), "--runbooks", str(pages), "-o", "json"
    )
    assert code == 0
    assert str(pages / "README.md") in json.loads(said)["files"]
    assert not (out / "runbooks").exists()


def test_a_custom_slo_file_changes_the_written_files(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    text = SHIPPED.read_text()
    text = text.replace("ticket: {above: 100, for: 5m}", "ticket: {above: 42, for: 5m}")
    file.write_text(text.replace("runbook_base: docs/runbooks", "runbook_base: https://wiki/x/"))
    assert invoke("render", str(file), "--output-dir", str(out))[0] == 0
    rules = (out / "rules.yaml").read_text()
    assert "(sum by (pool) (antefix_queue_requests)) > 42" in rules
    assert "runbook_url: https://wiki/x/AntefixQueueDeep.md" in rules


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    code, _, notes = invoke("render", "--output-dir", str(tmp_path / "out"))
    assert code == ExitCode.FAILED
    assert "cannot be written" in notes and "choose another --output-dir" in notes
