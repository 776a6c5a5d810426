"""Weights that have to prove themselves: the fleet file's gate."""

from pathlib import Path

import pytest

from common.errors import Problem
from deployments.fleet.fleet_file import FleetError, parse_fleet
from deployments.fleet.settings.quality import Quality, prove
from tests.weights.checkpoints import write_model
from tests.weights.evaluations import evaluation, side
from weights.evaluate import report, task_scores
from weights.evaluate.task_scores import TaskScore, TaskScores
from weights.model.checkpoint import weights_digest

LIMITS = Quality(max_kl=0.06, max_ppl_increase=0.1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose report is of its weights: mean KL up to 0.05, perplexity up to 9 % higher."""
    folder = write_model(tmp_path / "model")
    found = evaluation(candidate=side("./model", digest=weights_digest(folder)))
    report.write(folder, {"json": found.to_json()})
    return folder


def fleet_with(model: Path, quality: str) -> str:
    return f"name: a\npools:\n  engine:\n    model: {model}\n    quality: {quality}\n"


def test_weights_within_the_limits_are_served(model: Path) -> None:
    prove(model, LIMITS)
    parse_fleet(fleet_with(model, "{max_kl: 0.06}"), check_engine_args=False)


def test_weights_over_a_limit_are_refused_with_figure_and_limit(model: Path) -> None:
    with pytest.raises(Problem, match=r"lost too much: .* up to 0\.05 .* 0\.02 is allowed"):
        prove(model, Quality(max_kl=0.02))


def test_weights_without_a_report_are_refused_with_the_command(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "bare")
    with pytest.raises(Problem) as caught:
        prove(folder, LIMITS)
    assert "have no evaluation report" in caught.value.message
    assert f"antefix evaluate ORIGINAL {folder} --text FILE --max-kl 0.06" in caught.value.remedy


def test_other_weights_under_an_old_report_are_refused(model: Path) -> None:
    write_model(model, seed=5)
    with pytest.raises(Problem, match="are not those that antefix-evaluation"):
        prove(model, LIMITS)


def test_a_limit_stricter_than_the_proof_is_reported_with_its_line(model: Path) -> None:
    with pytest.raises(FleetError) as caught:
        parse_fleet(fleet_with(model, "{max_kl: 0.01}"), check_engine_args=False)
    complaint = str(caught.value)
    assert complaint.startswith("fleet.yaml:5: pools.engine.quality: the weights in ")
    assert "0.01 is allowed" in complaint


def test_weights_on_other_machines_are_left_to_the_engine(tmp_path: Path) -> None:
    text = fleet_with(tmp_path / "not-here", "{max_kl: 0.01}")
    assert parse_fleet(text, check_engine_args=False).pools["engine"].quality is not None


def scored(folder: Path, **scores: TaskScore) -> Path:
    named = {name.replace("__", "/"): score for name, score in scores.items()}
    found = TaskScores("2026-11-26", "lm_eval 0.4", "chat", weights_digest(folder), named)
    task_scores.write(folder, found)
    return folder


def test_weights_with_a_sufficient_score_are_served(model: Path) -> None:
    scored(model, piqa__acc=TaskScore(0.6, 0.05, True, 100))
    prove(model, Quality(min_scores={"piqa/acc": 0.5}))


def test_weights_whose_score_may_be_too_low_are_rejected(model: Path) -> None:
    scored(model, piqa__acc=TaskScore(0.6, 0.06, True, 100))
    with pytest.raises(Problem, match=r"piqa/acc may be as low as 0\.4824 .* but 0\.5 is required"):
        prove(model, Quality(min_scores={"piqa/acc": 0.5}))


def test_a_score_that_was_never_measured_is_named_with_those_that_were(model: Path) -> None:
    scored(model, piqa__acc=TaskScore(0.6, 0.06, True, 100))
    with pytest.raises(Problem, match="no score for piqa/acc_norm, only for piqa/acc"):
        prove(model, Quality(min_scores={"piqa/acc_norm": 0.5}))


def test_a_metric_where_less_is_better_cannot_have_a_minimum_score(model: Path) -> None:
    scored(model, wikitext__word_perplexity=TaskScore(20.0, None, False, 100))
    with pytest.raises(Problem, match="lower is better"):
        prove(model, Quality(min_scores={"wikitext/word_perplexity": 0.5}))


def test_weights_without_scores_are_refused_with_the_commands(model: Path) -> None:
    with pytest.raises(Problem) as caught:
        prove(model, Quality(min_scores={"piqa/acc": 0.5, "piqa/acc_norm": 0.5, "mmlu/acc": 0.3}))
    assert "have no scores on tasks" in caught.value.message
    assert caught.value.remedy == (
        f"run lm_eval --tasks piqa,mmlu, then antefix quality import RESULTS {model}"
    )


def test_scores_of_other_weights_do_not_count(model: Path) -> None:
    scored(model, piqa__acc=TaskScore(0.6, 0.0, True, 100))
    write_model(model, seed=5)
    with pytest.raises(Problem, match=r"are not those that antefix-scores\.json"):
        prove(model, Quality(min_scores={"piqa/acc": 0.5}))
