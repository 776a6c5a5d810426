"""A replica's engine under vLLM's model runner V2: what its processes do without a test's help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runner_v2.environment import V2_ASYNC
from tests.runner_v2.test_runners import MODULES, Found, found_under

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("replica")
    # functions are sent to the worker, which counts its passes
    more = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    return found_under(V2_ASYNC, models, folder, "tests.runner_v2.replica", more)


def test_the_plugin_skips_unneeded_draft_passes_in_the_worker_process(found: Found) -> None:
    told = found.of("drafted")
    assert told["runner"] == MODULES[V2_ASYNC]
    one, many = told["one"], told["many"]
    assert many["answers"] == 4 * one["answers"]
    assert one["passes"]["draft"] == 3 * one["passes"]["model"]
    assert one["passes"]["model"] < told["tokens"]  # drafts were right
    # a first step may have one sequence, and drafts
    assert many["passes"]["model"] >= told["tokens"]
    assert many["passes"]["draft"] <= 1.5 * many["passes"]["model"]


def test_an_engine_answers_its_own_first_request(found: Found) -> None:
    told = found.of("asked first")
    assert len(told["said"]) == 1 and "the engine's own first request took" in told["said"][0]
    assert told["passes"]["model"] >= 1


def test_the_profiler_records_the_runners_steps(found: Found) -> None:
    told = found.of("profiled")
    assert min(told["files"].values()) > 0
    assert told["aten::"] and told["execute_context_"]


def test_an_answer_meets_a_constraint_that_was_tried(found: Found) -> None:
    told = found.of("constrained")
    assert re.fullmatch("[a-f]{3}-[0-9]{3}", told["text"])
    assert told["admitted"] == {"fits": 1}


def test_an_embedding_never_reuses_cached_text_of_another_tenant(found: Found) -> None:
    told = found.of("salted")
    assert told["runner"] == "V2"
    cached = [one["cached"] for one in told["asked"]]
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0
    assert {one["size"] for one in told["asked"]} == {64}
