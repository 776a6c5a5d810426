"""A source that stops or ends in the middle of a copy costs a computation only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine_job import told_by
from tests.tiers.host_tier import BLOCK, PROMPT
from tests.tiers.interrupted_copies import AFTER, BEFORE, KILLED, OVER, STOPPED

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

WHOLE = PROMPT // BLOCK * BLOCK
LOGGED = "their source did not confirm the end of the copy; not using their host memory for 600 s"


@pytest.fixture(scope="module")
def told(
    warm_python: str, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    asked = {"model": str(small_model), "folder": str(tmp_path_factory.mktemp("copies"))}
    module = "tests.tiers.interrupted_copies"
    told: dict[str, Any] = told_by(warm_python, module, asked, within_s=800)
    return told


@pytest.mark.parametrize(("step", "number"), [("stopped", STOPPED), ("killed", KILLED)])
def test_a_prompt_whose_copy_is_interrupted_is_computed(
    told: dict[str, Any], step: str, number: int
) -> None:
    answer = told["steps"][step]
    assert answer["reused"] == 0
    assert answer["token_ids"] == told["computed"][str(number)]


def test_a_source_that_goes_on_does_not_overwrite_other_blocks(told: dict[str, Any]) -> None:
    assert len(told["over"]) == len(OVER)
    for (computed, _), (loaded, reused) in told["over"]:
        assert loaded == computed
        assert reused


@pytest.mark.parametrize(("step", "number"), [("before", BEFORE), ("after", AFTER)])
def test_a_source_that_went_on_is_a_source_again(
    told: dict[str, Any], step: str, number: int
) -> None:
    pulled = told["steps"][step]
    assert pulled["reused"] == WHOLE
    assert pulled["token_ids"] == told["computed"][str(number)]


def test_what_was_pulled_stays_when_its_source_is_killed(told: dict[str, Any]) -> None:
    again = told["steps"]["pulled before the kill"]
    assert again["reused"] == WHOLE
    assert again["token_ids"] == told["computed"][str(AFTER)]


def test_the_engine_logs_that_it_does_not_use_the_memory(told: dict[str, Any]) -> None:
    assert told["log"].count(LOGGED) == 2
