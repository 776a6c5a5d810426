"""`antefix verify` on the real fleet: an engine confirms what the index knew."""

from __future__ import annotations

import json

import pytest

from cli.common.exit_codes import ExitCode
from tests.real.conftest import RunningFleet
from tests.real.conversations import SEGMENT_TOKENS

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]


def test_the_running_fleet_is_verified(fleet: RunningFleet) -> None:
    done = fleet.antefix("verify", "-o", "json")
    assert done.returncode == ExitCode.OK, done.stdout
    told = json.loads(done.stdout)
    assert told["model"] == fleet.model
    assert told["first"]["cached_tokens"] == 0
    again = told["again"]
    assert again["replica"] == told["first"]["replica"]
    assert told["sampled"]["prompt_tokens"]
    assert again["cached_tokens"] >= again["cached_tokens_in_index"] >= 2 * SEGMENT_TOKENS


def test_the_text_output_names_the_hit(fleet: RunningFleet) -> None:
    arguments = ("--base-url", f"{fleet.root}/v1", "--api-key", fleet.api_key)
    done = fleet.antefix("verify", *arguments, "--model", fleet.other_model)
    print(done.stdout)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "(pool other, policy prefix" in done.stdout
    hit, sampled = done.stdout.splitlines()[-2:]
    assert hit.startswith("prefix hit") and sampled.startswith("sampled")


def test_a_model_that_is_not_served_is_reported(fleet: RunningFleet) -> None:
    done = fleet.antefix("verify", "--model", "no-such")
    assert done.returncode == ExitCode.FAILED
    assert "no-such" in done.stderr
