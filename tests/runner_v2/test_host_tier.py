"""Tiers and pulls work under vLLM's model runner V2, the one on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployments.app import ENGINE_ENVIRONMENT
from tests.runner_v2.environment import V2_ASYNC
from tests.runner_v2.test_runners import found_under
from tests.tiers.host_tier import BLOCK

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PROGRAM = "tests.runner_v2.host_tier"


@pytest.fixture(scope="module")
def steps(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tier")
    steps = found_under(V2_ASYNC, models, folder, PROGRAM, ENGINE_ENVIRONMENT).of("tier")
    assert steps["runner"] == "V2"
    return steps


def test_an_evicted_prefix_is_loaded_with_the_same_answer(steps: dict[str, Any]) -> None:
    computed, loaded = steps["computed"], steps["loaded"]
    assert computed["reused"] == 0
    assert loaded["in_cache"] < loaded["loadable"] == loaded["reused"]
    assert loaded["token_ids"] == computed["token_ids"]


def test_a_request_that_refuses_the_host_tier_loads_nothing(steps: dict[str, Any]) -> None:
    refused = steps["refused"]
    assert refused["reused"] == refused["in_cache"] < refused["loadable"]
    assert refused["token_ids"] == steps["computed"]["token_ids"]


def test_another_cache_salt_finds_nothing_in_the_host_tier(steps: dict[str, Any]) -> None:
    assert steps["of another tenant"]["reused"] == 0


def test_a_prefix_is_pulled_from_another_engine_with_the_same_answer(steps: dict[str, Any]) -> None:
    assert steps["pulled"]["reused"] == 4 * BLOCK
    assert steps["pulled"]["token_ids"] == steps["computed"]["token_ids"]


def test_a_prefix_is_read_from_the_disk_with_the_same_answer(steps: dict[str, Any]) -> None:
    assert steps["other computed"]["reused"] == 0
    assert steps["read"]["loadable"] == 0  # from the host
    assert steps["read"]["reused"] == 4 * BLOCK
    assert steps["read"]["token_ids"] == steps["other computed"]["token_ids"]


def test_a_reset_of_the_prefix_cache_empties_the_host_tier(steps: dict[str, Any]) -> None:
    assert steps["reset"]["reused"] == steps["reset"]["loadable"] == 0
