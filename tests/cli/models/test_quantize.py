"""What `antefix quantize` refuses before it loads anything."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.main import app
from weights.model.schemes import SCHEMES


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["quantize", *arguments, "-o", "json"])
    assert done.exit_code == ExitCode.USAGE, done.output
    return str(json.loads(done.stdout)["error"]["message"])


def test_a_scheme_that_looks_at_activations_asks_for_a_text() -> None:
    assert refused("embedded", "--scheme", "awq") == "awq needs a text to calibrate with"


def test_a_calibration_line_without_text_is_rejected(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("{}\n")
    said = refused("embedded", "--scheme", "gptq", "--calibration", str(text))
    assert said.startswith(f"{text}:1 has no text in any of the known keys")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["embedded", "--scheme", "q4_k"], "unknown scheme 'q4_k'"),
        (["embedded", "--scheme", "fp8", "--group-size", "64"], "fp8 has no groups"),
        (["embedded", "--scheme", "rtn", "--set", "damp=0.1"], "rtn has no option 'damp'"),
        ([], "no model was given"),
    ],
)
def test_a_wrong_command_line_is_reported(arguments: list[str], said: str) -> None:
    assert refused(*arguments) == said


def test_quantize_lists_every_scheme() -> None:
    done = CliRunner().invoke(app, ["quantize", "--list", "-o", "json"])
    assert json.loads(done.stdout)["schemes"].keys() == SCHEMES.keys()


def test_a_model_is_never_written_over_itself(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    where = str(tmp_path / "model")
    said = refused(where, "--scheme", "rtn", "--output-dir", where, "--force")
    assert said == f"{where} is the model itself"
