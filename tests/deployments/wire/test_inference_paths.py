"""The table of paths agrees with itself, and with those who read paths elsewhere."""

import pytest

from deployments.wire.inference_paths import (
    COUNT_TOKENS,
    GENERATING,
    INFERENCE_PATHS,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    InferencePath,
    inference_path,
)
from tests.sentences import assert_sentences

ALL = list(INFERENCE_PATHS.values())


@pytest.mark.parametrize("path", ALL, ids=list(INFERENCE_PATHS))
def test_a_path_that_generates_says_how_its_answers_are_bounded_and_end(
    path: InferencePath,
) -> None:
    assert path.generates == bool(path.max_tokens) == bool(path.last_event)
    assert path.generates or not (path.has_n or path.default_max_tokens)
    assert path.is_salted or not path.is_charged
    assert path.prompts or path.documents or not path.shared
    assert_sentences(path.does)


def test_a_prompt_is_read_on_every_path_that_generates_or_counts_unless_it_is_audio() -> None:
    audio = {path.path for path in ALL if path.is_form}
    assert audio == {TRANSCRIPTIONS, TRANSLATIONS}
    read = {path.path for path in ALL if path.prompt_form}
    assert read == {*GENERATING, COUNT_TOKENS} - audio


def test_spans_name_what_is_done_on_every_path_that_generates() -> None:
    named = {path.path for path in ALL if path.operation}
    assert named >= set(GENERATING)


def test_a_path_that_is_not_served_asks_for_nothing() -> None:
    other = inference_path("/v1/other")
    assert (other.generates, other.has_n, other.has_priority) == (False, False, False)
