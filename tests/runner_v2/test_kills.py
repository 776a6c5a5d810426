"""Answers outlive their engine under vLLM's model runner V2, as on GPUs: exactly, or labelled."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.runner_v2.environment import REPOSITORY
from tests.runner_v2.test_runners import WITHIN_S

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

FEW = 6


def test_answers_are_complete_and_different_tokens_are_labelled() -> None:
    found = killed(noise=0.5)
    assert found["hit"] >= FEW
    assert found["wrong"] == {}
    assert found["of_these_not_labelled"] == 0
    assert found["labelled"] == found["hit"]


def killed(noise: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runner_v2.kills", f"--answers={FEW}", f"--noise={noise}"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        cwd=REPOSITORY,
    )
    assert not done.returncode, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
