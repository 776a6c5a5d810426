"""Answers from all tiers are those that engines compute, while faults are injected."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.results import rules
from benchmarks.tiers.identical import identical, identical_goals

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

RULE = rules.of("tiers")
ANSWERS, SEED = 60, 1


async def test_answers_with_faults_are_the_computed_ones(tmp_path: Path) -> None:
    found = await identical(tmp_path, RULE.settings, ANSWERS, SEED)
    assert found["answers"] >= ANSWERS
    assert found["faults"] == dict.fromkeys(RULE.settings["identical_faults"], 1)
    assert min(found["by_way"].values()) > 0
    assert found["wrong"] == []
    assert found["failed"] == 0
    assert found["uncertain_share"] < 0.5
    assert identical_goals(RULE, found)["identical_logprobs"]["met"]
