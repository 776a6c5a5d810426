"""What is kept of an evaluation, its gate, and its pages."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from common.errors import Problem
from tests.weights.evaluations import evaluation, side
from weights.evaluate import report
from weights.evaluate.estimate import Estimate
from weights.evaluate.report_page import markdown, plot, text


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    for found in (evaluation(), evaluation(answers=None, rates=None, max_kl=0.1)):
        report.write(tmp_path, {"json": found.to_json()})
        assert report.read(tmp_path) == found


def test_writing_a_report_leaves_no_other_file(tmp_path: Path) -> None:
    report.write(tmp_path, {"json": "{}", "md": "#"})
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"antefix-evaluation.json", "antefix-evaluation.md"}


def test_a_folder_without_a_report_has_none(tmp_path: Path) -> None:
    assert report.read(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{}", "[", '{"kl": 1}'])
def test_an_invalid_report_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "antefix-evaluation.json").write_text(content)
    with pytest.raises(Problem, match="cannot be read as an evaluation"):
        report.read(tmp_path)


def test_the_upper_end_of_the_interval_is_judged() -> None:
    found = evaluation()
    assert found.exceeded(max_kl=0.05, max_ppl_increase=0.0901) == []
    assert len(found.exceeded(max_kl=0.049, max_ppl_increase=None)) == 1
    assert len(found.exceeded(max_kl=None, max_ppl_increase=0.085)) == 1


def test_an_exceeded_limit_is_reported_with_its_figures() -> None:
    over_kl, over_ppl = evaluation().exceeded(max_kl=0.01, max_ppl_increase=0.05)
    assert (
        over_kl == "mean KL is up to 0.05 nats a token (measured 0.04), but at most 0.01 is allowed"
    )
    assert (
        over_ppl
        == "perplexity is up to 9.00% higher (measured 8.00%), but at most 5.00% is allowed"
    )


def test_a_nan_meets_no_limit() -> None:
    found = evaluation(kl=Estimate(float("nan"), float("nan"), float("nan")))
    assert found.exceeded(max_kl=1e9, max_ppl_increase=None)


def test_report_pages_show_every_figure() -> None:
    found = evaluation(max_kl=0.01)
    for page in (text(found), markdown(found)):
        for figure in ("8.66", "1.080 [1.070, 1.090]", "0.04 [0.03, 0.05]", "x 0.426", "24,528"):
            assert figure in page
        assert "Refused: mean KL is up to 0.05" in page


def test_report_pages_omit_what_was_not_measured() -> None:
    bare = side("org/model", digest=None, bytes_=None)
    found = evaluation(candidate=bare, answers=None, rates=None)
    assert "decode" not in text(found)
    assert "weights, MB" not in text(found)
    assert "No limit was set" in markdown(found)


def test_the_plot_is_one_deterministic_svg() -> None:
    drawn = plot(evaluation())
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert drawn == plot(evaluation())
    assert "mean KL, nats" in drawn
