"""What an engine with a host tier reuses is what the index predicts, for each request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine_job import told_by

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

# About 60 blocks of the small model. The device has 28.
HOST_BYTES = 12_000_000


@pytest.fixture(scope="module")
def told(warm_python: str, small_model: Path) -> dict[str, Any]:
    asked = {"model": str(small_model), "requests": 100, "seed": 1, "host_bytes": HOST_BYTES}
    told: dict[str, Any] = told_by(warm_python, "tests.tiers.host_tier", asked, within_s=800)
    return told


def test_an_evicted_prefix_is_loaded_from_the_host_with_the_same_answer(
    told: dict[str, Any],
) -> None:
    computed, loaded = told["steps"]["computed"], told["steps"]["loaded"]
    assert computed["reused"] == 0
    assert loaded["in_cache"] < loaded["loadable"] == loaded["reused"]
    assert loaded["token_ids"] == computed["token_ids"]


def test_a_request_that_refuses_the_host_tier_loads_nothing(told: dict[str, Any]) -> None:
    refused = told["steps"]["refused"]
    assert refused["reused"] == refused["in_cache"] < refused["loadable"]
    assert refused["token_ids"] == told["steps"]["computed"]["token_ids"]


def test_another_cache_salt_finds_nothing_in_the_host_tier(told: dict[str, Any]) -> None:
    assert told["steps"]["of another tenant"]["reused"] == 0


def test_the_next_turn_of_a_conversation_loads_the_answer_too(told: dict[str, Any]) -> None:
    turn = told["steps"]["next turn"]
    assert turn["reused"] == turn["loadable"] > told["steps"]["loaded"]["loadable"]


def test_an_answer_that_is_resumed_loads_its_prompt_and_has_the_same_tokens(
    told: dict[str, Any],
) -> None:
    whole, resumed = told["steps"]["whole"], told["steps"]["resumed"]
    assert len(whole["token_ids"]) == 40
    assert resumed["token_ids"] == whole["token_ids"]


def test_a_reset_of_the_prefix_cache_empties_the_host_tier(told: dict[str, Any]) -> None:
    assert told["steps"]["reset"]["reused"] == told["steps"]["reset"]["loadable"] == 0


def test_the_index_predicts_what_each_random_request_reuses(told: dict[str, Any]) -> None:
    assert [reused for _, _, reused in told["random"]] == [most for _, most, _ in told["random"]]
    assert any(cached < most for cached, most, _ in told["random"])


def test_an_engine_measures_its_loads_from_the_host_tier(told: dict[str, Any]) -> None:
    assert told["host_load_rate"] > 0


def test_the_shared_memory_of_a_running_engine_has_no_name(told: dict[str, Any]) -> None:
    assert told["named"] == []
