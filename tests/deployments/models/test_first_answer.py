"""What a new user sees first is a good answer, on every CPU."""

import re
from pathlib import Path

import pytest

from deployments.models.model import embedded_model
from tests.deployments.models.first_answer import FIRST_ANSWER, FIRST_QUESTION, answers_to

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_first_question_is_answered_correctly_with_any_dtype() -> None:
    """Otherwise kernels of another CPU would turn the first answer that a new user sees."""
    answers = answers_to(embedded_model(lambda fraction, what: None), FIRST_QUESTION)
    assert {answer.text for answer in answers.values()} == {FIRST_ANSWER}
    for answer in answers.values():
        assert min(answer.margins[:5]) >= 1


@pytest.mark.parametrize("page", ["README.md", "docs/laptop.md"])
def test_a_page_asks_the_first_question(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    assert FIRST_QUESTION in text
    assert set(re.findall(r"What is the capital of \w+\?", text)) == {FIRST_QUESTION}
