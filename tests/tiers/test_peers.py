"""Engines pull blocks from each other's host tiers, and compute what they cannot pull."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployments.models.model import embedded_model
from tests.engine_job import told_by
from tests.tiers.host_tier import BLOCK, PROMPT
from weights.speculation.drafts import first_layers

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

# The documents of a dozen requests stay in the host tier, and the device has room for four.
HOST_BYTES = 24_000_000
WHOLE = PROMPT // BLOCK * BLOCK
COMPUTED = [
    "refused",
    "of another tenant",
    "unknown",
    "of nobody",
    "of no address",
    "of other weights",
    "of another fleet",
    "of a hung engine",
    "of a killed engine",
]


@pytest.fixture(scope="module")
def told(
    warm_python: str, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("peers")
    other = folder / "other"
    first_layers(embedded_model(lambda fraction, what: None), 3, other)
    asked = {
        "model": str(small_model),
        "other_model": str(other),
        "folder": str(folder),
        "requests": 20,
        "seed": 1,
        "host_bytes": HOST_BYTES,
    }
    told: dict[str, Any] = told_by(warm_python, "tests.tiers.peers", asked, within_s=800)
    return told


def test_a_prefix_is_pulled_from_the_engine_that_has_it_with_the_same_answer(
    told: dict[str, Any],
) -> None:
    pulled = told["steps"]["pulled"]
    assert (pulled["loadable"], pulled["reused"]) == (0, WHOLE)
    assert pulled["token_ids"] == told["computed"]["11"]


def test_a_pulled_prefix_stays(told: dict[str, Any]) -> None:
    again = told["steps"]["again"]
    assert again["in_cache"] == again["loadable"] == again["reused"] == WHOLE


def test_the_index_has_a_pulled_prefix_that_only_the_host_still_has(told: dict[str, Any]) -> None:
    after = told["steps"]["after eviction"]
    assert after["in_cache"] < WHOLE
    assert after["loadable"] == after["reused"] == WHOLE


@pytest.mark.parametrize("step", COMPUTED)
def test_what_cannot_be_pulled_is_computed(told: dict[str, Any], step: str) -> None:
    assert told["steps"][step]["reused"] == 0


def test_what_is_not_pulled_has_the_same_answer(told: dict[str, Any]) -> None:
    steps, computed = told["steps"], told["computed"]
    numbers = {"refused": 10, "of nobody": 7, "of no address": 6, "of a hung engine": 26}
    for step, number in {**numbers, "of a killed engine": 24}.items():
        assert steps[step]["token_ids"] == computed[str(number)]


def test_engines_pull_from_each_other_at_the_same_time_with_the_same_answers(
    told: dict[str, Any],
) -> None:
    assert len(told["random"]) == 20
    assert [pulled for _, pulled in told["random"]] == [computed for computed, _ in told["random"]]


def test_an_engine_that_was_hung_is_a_source_again(told: dict[str, Any]) -> None:
    assert told["steps"]["before the hang"]["reused"] == WHOLE
    assert told["steps"]["after the hang"]["reused"] == WHOLE


def test_an_engine_measures_its_pulls(told: dict[str, Any]) -> None:
    assert told["rate"] > 0


def test_an_engine_with_peers_rests_while_nothing_happens(told: dict[str, Any]) -> None:
    assert "IDLE" in told["idle"]


def test_an_engine_with_peers_sleeps_once_its_requests_have_ended(told: dict[str, Any]) -> None:
    assert told["slept"]


def test_a_source_that_is_killed_during_a_handover_costs_only_cache(told: dict[str, Any]) -> None:
    assert told["taken"] == [1, WHOLE]
    assert told["steps"]["lost with its source"]["token_ids"] == told["computed"]["21"]
