"""`antefix evaluate`: its arguments, its gate and its report; what it measures is known here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from tests.weights.checkpoints import write_model
from tests.weights.evaluations import evaluation
from weights.evaluate import report


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What the engines would have been asked; they find mean KL up to 0.05."""
    calls: list[Any] = []

    def measured(*arguments: Any) -> Any:
        calls.append(arguments)
        return evaluation()

    monkeypatch.setattr("deployments.offline.evaluation.evaluate", measured)
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("Some text.\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hi"}\n')
    write_model(tmp_path / "awq")
    write_model(tmp_path / "bf16")
    return calls


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["evaluate", "./bf16", "./awq", *arguments])


def test_the_report_is_written_next_to_the_weights(asked: list[Any], tmp_path: Path) -> None:
    done = run("--text", "text.txt")
    assert done.exit_code == 0, done.stderr
    assert "x 0.426" in done.stdout
    kept = {file.name for file in (tmp_path / "awq").glob("antefix-evaluation.*")}
    assert kept == {f"antefix-evaluation.{suffix}" for suffix in ("json", "md", "svg")}
    found = report.read(tmp_path / "awq")
    assert found is not None
    # as the user calls them, not as this machine does
    assert (found.reference.model, found.candidate.model) == ("./bf16", "./awq")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            ["--max-kl", "0.04"],
            "mean KL is up to 0.05 nats a token (measured 0.04), but at most 0.04",
        ),
        (["--max-ppl-increase", "0.05"], "perplexity is up to 9.00% higher"),
    ],
)
def test_an_exceeded_limit_has_a_separate_exit_code(
    asked: list[Any], tmp_path: Path, limit: list[str], words: str
) -> None:
    done = run("--text", "text.txt", *limit)
    assert done.exit_code == ExitCode.GATE
    assert words in done.stderr
    # the proof of the failure is kept, too
    assert report.read(tmp_path / "awq") is not None


def test_evaluate_succeeds_within_the_limits(asked: list[Any]) -> None:
    done = run("--text", "text.txt", "--max-kl", "0.06", "--max-ppl-increase", "0.1")
    assert done.exit_code == 0
    assert "Within the limits" in done.stdout


def test_json_output_has_the_report_and_the_exceeded_limits(
    asked: list[Any], tmp_path: Path
) -> None:
    done = run("--text", "text.txt", "--max-kl", "0.01", "-o", "json")
    answer = json.loads(done.stdout)
    assert done.exit_code == ExitCode.GATE
    assert answer["kl"] == {"value": 0.04, "low": 0.03, "high": 0.05}
    assert answer["report"] == str(tmp_path / "awq")
    assert len(answer["exceeded"]) == 1


def test_the_report_is_written_to_the_current_folder_if_the_model_is_not_a_writable_folder(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.models.evaluate.check_model", lambda model: None)  # org/model exists
    arguments = ["evaluate", "./bf16", "org/model", "--text", "text.txt"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "antefix-evaluation.json").exists()
    assert "is not a writable folder" in done.stderr


def test_the_engines_get_the_arguments_as_a_fleet_file_would_have_them(asked: list[Any]) -> None:
    done = run("--text", "text.txt", "--engine-arg", "dtype=float32", "--engine-arg", "seed=3")
    assert done.exit_code == 0, done.stderr
    arguments = asked[0][4]
    assert arguments["dtype"] == "float32"
    assert arguments["seed"] == 3


def test_the_named_texts_and_options_are_used(asked: list[Any]) -> None:
    run("--text", "text.txt", "--prompts", "prompts.jsonl", "--window", "64", "--sequential")
    how = asked[0][2]
    assert how.texts == ["Some text.\n"]
    assert how.prompts == [[{"role": "user", "content": "Hi"}]]
    assert (how.window, how.together) == (64, False)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "complaint"),
    [
        ([], ExitCode.USAGE, "no text and no prompts were given\nRemedy: pass a text"),
        (["--text", "no.txt"], ExitCode.FAILED, "no.txt cannot be read: no such file"),
        (["--prompts", "text.jsonl"], ExitCode.FAILED, "text.jsonl cannot be read"),
        (
            ["--text", "text.txt", "--engine-arg", "dtype"],
            ExitCode.USAGE,
            "--engine-arg 'dtype' is not KEY=VALUE\nRemedy: for example, dtype=float32",
        ),
        (
            ["--text", "text.txt", "--output-dir", "nowhere"],
            ExitCode.FAILED,
            "the report cannot be written into nowhere\nRemedy: choose another folder with",
        ),
    ],
)
def test_wrong_arguments_are_reported_before_any_engine_loads(
    asked: list[Any], arguments: list[str], exit_code: ExitCode, complaint: str
) -> None:
    done = run(*arguments)
    assert (done.exit_code, asked) == (exit_code, [])
    assert complaint in done.stderr


def test_a_missing_model_is_reported(asked: list[Any]) -> None:
    done = CliRunner().invoke(app, ["evaluate", "./bf16", "./none", "--text", "text.txt"])
    assert done.exit_code == ExitCode.FAILED
    assert "the model folder './none' does not exist" in done.stderr
