"""Scores on tasks: read from lm-eval's results, kept next to the weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.main import app
from common.errors import Problem
from tests.weights.checkpoints import write_model
from weights.evaluate import task_scores
from weights.evaluate.task_scores import TaskScore, imported
from weights.model.checkpoint import weights_digest

# What lm_eval 0.4.13 wrote of two tasks of ten questions each, one scored by log-probabilities and
# one by its answers.
WRITTEN = Path(__file__).parents[1] / "lm_eval_results.json"
# As it writes others, without what is not read.
RESULTS: dict[str, Any] = {
    "results": {
        "hellaswag": {
            "alias": "hellaswag",
            "acc,none": 0.5,
            "acc_stderr,none": 0.05,
            "acc_norm,none": 0.6,
            "acc_norm_stderr,none": 0.04,
        },
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.25,
            "exact_match_stderr,strict-match": "N/A",
        },
        "wikitext": {"alias": "wikitext", "word_perplexity,none": 20.5},
    },
    "higher_is_better": {
        "hellaswag": {"acc": True, "acc_norm": True},
        "wikitext": {"word_perplexity": False},
    },
    "n-samples": {"hellaswag": {"original": 10042, "effective": 100}},
    "model_name": "chat",
    "lm_eval_version": "0.4.13",
    "date": 1700000000.5,
}


def results_with(**more: Any) -> str:
    return json.dumps(RESULTS | more)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def test_every_metric_is_read_with_its_error_and_its_samples() -> None:
    found = imported(json.dumps(RESULTS), "digest")
    assert found.scores == {
        "hellaswag/acc": TaskScore(0.5, 0.05, True, 100),
        "hellaswag/acc_norm": TaskScore(0.6, 0.04, True, 100),
        "gsm8k/exact_match,strict-match": TaskScore(0.25, None, True, None),
        "wikitext/word_perplexity": TaskScore(20.5, None, False, None),
    }
    assert (found.harness, found.model, found.digest) == ("lm_eval 0.4.13", "chat", "digest")
    assert found.date == "2023-11-14"


def test_a_file_that_lm_eval_wrote_is_read() -> None:
    found = imported(WRITTEN.read_text(), "digest")
    choice = TaskScore(0.7, 0.15275252316519466, True, 10)
    assert found.scores == {
        "tiny_choice/acc": choice,
        "tiny_choice/acc_norm": choice,
        "tiny_words/exact_match,first-word": TaskScore(0.2, 0.13333333333333333, True, 10),
    }
    assert (found.harness, found.model, found.date) == ("lm_eval 0.4.13", "chat", "2026-11-26")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": 1}', '{"results": {"a": 1}}'])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="not a results file of lm-eval"):
        imported(text, "digest")


def test_results_without_a_score_are_refused() -> None:
    with pytest.raises(Problem, match="it has no score"):
        imported(results_with(results={}), "digest")


def test_a_second_run_adds_its_tasks(model: Path) -> None:
    digest = weights_digest(model)
    first = imported(results_with(results={"piqa": {"acc,none": 0.7}}), digest)
    second = imported(results_with(results={"arc": {"acc,none": 0.3}}), digest)
    assert second.with_older(first).scores.keys() == {"piqa/acc", "arc/acc"}


def test_scores_of_other_weights_are_left_out() -> None:
    first = imported(results_with(results={"piqa": {"acc,none": 0.7}}), "other")
    second = imported(results_with(results={"arc": {"acc,none": 0.3}}), "digest")
    assert second.with_older(first).scores.keys() == {"arc/acc"}


def test_written_scores_are_read_again(model: Path) -> None:
    found = imported(json.dumps(RESULTS), weights_digest(model))
    task_scores.write(model, found)
    assert task_scores.read(model) == found
    (model / task_scores.NAME).write_text("{")
    with pytest.raises(Problem, match="cannot be read as scores"):
        task_scores.read(model)


def test_the_command_writes_scores_next_to_the_weights(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(RESULTS))
    done = CliRunner().invoke(app, ["quality", "import", str(file), str(model)])
    assert done.exit_code == ExitCode.OK, done.output
    assert "hellaswag/acc_norm: 0.6, at least 0.5216" in done.output
    kept = task_scores.read(model)
    assert kept is not None and kept.digest == weights_digest(model)


def test_the_command_names_the_file_that_it_cannot_read(model: Path, tmp_path: Path) -> None:
    for content, says in ((None, "cannot be read"), ("{}", "not a results file of lm-eval")):
        file = tmp_path / "results.json"
        if content is not None:
            file.write_text(content)
        done = CliRunner().invoke(app, ["quality", "import", str(file), str(model), "-o", "json"])
        assert done.exit_code != ExitCode.OK
        told = json.loads(done.stdout)["error"]["message"]
        assert str(file) in told and says in told
