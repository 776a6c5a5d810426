"""Hooks into vLLM work under its model runner V2, the one on GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from common.errors import Problem
from deployments.engine.vllm.watch.heartbeat import NEW_STEP_S
from tests.missing import missing
from tests.runner_v2 import tiny_models
from tests.runner_v2.environment import (
    KINDS_OF,
    METHODS,
    METHODS_OF,
    REPOSITORY,
    RUNNERS,
    V2,
    V2_ASYNC,
    environment,
)
from tests.some import some

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

WITHIN_S = 540.0
N_GRAMS = ("ngram", "ngram_gpu")
MODULES = dict.fromkeys(RUNNERS, "vllm.v1.worker.gpu.model_runner")


class Found(dict[str, dict[str, Any]]):
    """One runner's results, by part, as a program such as `tests.runner_v2.engines` found them."""

    def of(self, part: str) -> dict[str, Any]:
        assert part in self, f"the process ended before {part}"
        assert "error" not in self[part], self[part]["error"]
        return self[part]


def found_under(
    runner: str,
    models: Path,
    folder: Path,
    program: str = "tests.runner_v2.engines",
    more: Mapping[str, str] = {},
) -> Found:
    """What the program finds, in an environment with `more`."""
    try:
        variables = {**environment(runner, folder), **more}
    except Problem as problem:
        missing(f"{problem.message} ({problem.remedy})")
    with (folder / "log").open("w+") as log:
        done = subprocess.run(
            [sys.executable, "-m", program, str(models)],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=WITHIN_S,
            check=False,
            cwd=REPOSITORY,
        )
        log.seek(0)
        said = log.read()[-4000:]
    lines = map(json.loads, done.stdout.splitlines())
    found = Found((line["part"], line["found"]) for line in lines)
    assert found and not done.returncode, said
    return found


@pytest.fixture(scope="module")
def all_found(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Found]:
    return FoundUnder(models, tmp_path_factory)


class FoundUnder(dict[str, Found]):
    """Each runner is looked at when it is first asked for: a process of half a minute or more."""

    def __init__(self, models: Path, folders: pytest.TempPathFactory) -> None:
        self._models, self._folders = models, folders

    def __missing__(self, runner: str) -> Found:
        self[runner] = found_under(runner, self._models, self._folders.mktemp("runner"))
        return self[runner]


class Drafting(NamedTuple):
    """What was found in an engine that speculates by this method."""

    found: Found
    method: str


def assert_continued(told: Mapping[str, Any]) -> None:
    assert told["left_out"] is None
    assert told["cuts"] >= 4
    assert not told["other"]
    assert not told["reruns"]
    # a prefill adds up in another order than a step of decoding
    assert told["logprobs_off"] < 1e-3


@pytest.fixture(params=RUNNERS)
def found(all_found: Mapping[str, Found], request: pytest.FixtureRequest) -> Found:
    return all_found[request.param]


@pytest.mark.parametrize(("runner", "kind"), [(r, kind) for r in RUNNERS for kind in KINDS_OF[r]])
def test_a_resumed_answer_has_the_tokens_of_an_uninterrupted_one(
    all_found: Mapping[str, Found], runner: str, kind: str
) -> None:
    found = all_found[runner]
    told = found.of(f"continued {kind}")
    assert_continued(told)
    # what makes the kind changes the tokens, except for logprobs
    same = told["tokens"] == found.of("continued greedy")["tokens"]
    assert same == (kind in ("greedy", "logprobs"))


def test_the_tap_has_the_logits_that_clients_see(found: Found) -> None:
    told = found.of("tapped")
    assert told["rows"] == 129
    assert told["worst"] < 1e-4


def test_cached_blocks_are_published_once_and_again_on_request(found: Found) -> None:
    told = found.of("cached")
    assert told["first"] and set(told["first"]) == {"BlockStored"}
    assert told["cached"] == 0
    assert told["reported_again"]


def test_a_step_that_compiles_for_a_minute_is_not_a_hang(found: Found) -> None:
    told = found.of("witnessed")
    assert told["new"] == {"verdict": "HEALTHY", "bound_s": NEW_STEP_S, "phase": "STEP"}


def test_a_step_of_a_known_kind_that_takes_a_minute_is_a_hang(found: Found) -> None:
    told = found.of("witnessed")["known"]
    assert told["verdict"] == "HUNG"
    assert told["bound_s"] < 1.0


def test_the_heartbeat_covers_two_running_steps_with_asynchronous_scheduling(
    all_found: Mapping[str, Found],
) -> None:
    under_way = {runner: all_found[runner].of("witnessed")["under_way"] for runner in RUNNERS}
    assert under_way == {V2: 1, V2_ASYNC: 2}


def test_an_engine_answers_as_before_after_sleeping(found: Found) -> None:
    told = found.of("slept")
    assert not told["frees_memory"], "test that, too, and say so in docs/upgrading.md"
    assert told["states"] == [True, True, False, False]
    assert told["same"]
    # its prefix cache is gone, and the index learns of it
    assert told["events"] == ["AllBlocksCleared"]


@pytest.fixture
def speculating(all_found: Mapping[str, Found], request: pytest.FixtureRequest) -> Drafting:
    runner, method = request.param
    return Drafting(all_found[runner], method)


def drafting_by(*methods: str) -> pytest.MarkDecorator:
    """A test under each runner that has one of these methods."""
    pairs = [(r, method) for r in RUNNERS for method in METHODS_OF[r] if method in methods]
    return pytest.mark.parametrize("speculating", pairs, indirect=True, ids="-".join)


@drafting_by(*METHODS)
def test_switching_speculation_off_does_not_change_answers(speculating: Drafting) -> None:
    told = speculating.found.of(f"switched {speculating.method}")
    assert told["watched"] and told["still watched"]
    without = speculating.found.of("runner")["greedy"]
    assert without == told["on"]["tokens"] == told["off"]["tokens"] == told["on again"]["tokens"]
    if speculating.method in N_GRAMS:
        return
    # off, the draft's KV cache is kept up to date and no more: one forward a step
    assert told["off"]["forwards"] <= told["off"]["steps"]
    assert told["on"]["forwards"] > told["on"]["steps"]


@drafting_by(*METHODS)
def test_drafts_are_made_and_accepted_if_the_draft_is_accurate(speculating: Drafting) -> None:
    told = speculating.found.of(f"drafts {speculating.method}")
    assert told["draft"] > 0
    # the heads are random
    assert bool(told["accepted"]) == (speculating.method in ("draft_model", *N_GRAMS))


@drafting_by("eagle3", *N_GRAMS)
def test_drafts_follow_a_schedule_by_batch_size(speculating: Drafting) -> None:
    told = speculating.found.of(f"scheduled {speculating.method}")
    without = speculating.found.of("runner")["greedy"]
    assert told["few"]["tokens"] == without
    assert told["many"]["tokens"] == 2 * without
    drafted = [drafts for requests, drafts in told["few"]["steps"] if requests == 2]
    assert 0 < max(drafted) <= 2 * 2  # n-grams are not found in every step
    assert {drafts for requests, drafts in told["many"]["steps"] if requests > 2} == {0}


@drafting_by("draft_model", "eagle3", *N_GRAMS)
def test_an_answer_of_an_engine_with_speculation_is_resumed(speculating: Drafting) -> None:
    kinds = {"draft_model": ("penalties", "logprobs"), "eagle3": ("greedy",)}
    for kind in some(kinds.get(speculating.method, ("regex",))):
        told = speculating.found.of(f"{speculating.method} continued {kind}")
        assert told["tokens"] == speculating.found.of(f"continued {kind}")["tokens"]
        assert_continued(told)


@drafting_by("draft_model", *N_GRAMS)
def test_a_seeded_answer_of_an_engine_with_speculation_is_not_resumed(
    speculating: Drafting,
) -> None:
    told = speculating.found.of(f"{speculating.method} continued seeded")
    assert told["left_out"] == "a seed's draws depend on what was drafted"


def test_an_adapter_loaded_at_run_time_answers_as_if_merged_into_the_weights(
    found: Found, models: Path
) -> None:
    told, without = found.of("adapted"), found.of("runner")["greedy"]
    expected = tiny_models.adapted_tokens(models, len(without[0]))
    assert told["loaded"]
    assert told["before"] == without != expected
    assert told["with"] == expected
    assert told["both"] == without + expected


def test_an_answer_of_an_adapter_is_resumed(found: Found) -> None:
    told = found.of("adapter continued")
    assert_continued(told)
    whole = found.of("adapted")["with"]
    assert told["tokens"] == [tokens[: len(told["tokens"][0])] for tokens in whole]


def test_each_runner_uses_its_configured_module_and_scheduler(
    all_found: Mapping[str, Found],
) -> None:
    about = {runner: all_found[runner].of("runner") for runner in RUNNERS}
    assert {runner: about[runner]["module"] for runner in RUNNERS} == MODULES
    is_async = [runner for runner in RUNNERS if "Async" in about[runner]["scheduler"]]
    assert is_async == [V2_ASYNC]
    assert len({json.dumps(about[runner]["greedy"]) for runner in RUNNERS}) == 1


def test_synchronous_and_asynchronous_scheduling_sample_the_same_from_a_seed(
    all_found: Mapping[str, Found],
) -> None:
    """So they continue each other's answers."""
    made_by = [all_found[runner].of("runner")["made_by"] for runner in RUNNERS]
    seeded = [all_found[runner].of("continued seeded")["tokens"] for runner in RUNNERS]
    assert made_by[0] == made_by[1]
    assert seeded[0] == seeded[1]
