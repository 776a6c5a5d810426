"""When vLLM is asked about engine arguments, and what happens when it cannot be."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from deployments.fleet.fleet_file import parse_fleet
from deployments.fleet.settings import engine_args
from deployments.fleet.settings.engine_args import EngineArgRefused, refused_by_vllm


class Asked:
    """Stands in for the process that asks vLLM; counts how often."""

    def __init__(self, refused: list[EngineArgRefused] | None) -> None:
        self.refused = refused
        self.pools: list[list[str]] = []

    def __call__(self, engine_args_of: dict[str, Any]) -> list[EngineArgRefused] | None:
        self.pools.append(sorted(engine_args_of))
        return self.refused


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTEFIX_CACHE", str(tmp_path))
    monkeypatch.setattr(engine_args, "_vllm_version", lambda: "vllm 1")
    return tmp_path


def test_arguments_that_vllm_accepted_are_not_checked_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked([EngineArgRefused("bad", "seed", "x", "not a whole number", "Write one")])
    monkeypatch.setattr(engine_args, "_ask", asked)
    for _ in range(2):
        refused = refused_by_vllm({"good": {"seed": 1}, "bad": {"seed": "x"}})
        assert [each.pool for each in refused] == ["bad"]
    assert asked.pools == [["bad", "good"], ["bad"]]


def test_engine_arguments_are_checked_again_with_a_new_version_of_vllm(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked([])
    monkeypatch.setattr(engine_args, "_ask", asked)
    refused_by_vllm({"a": {}})
    monkeypatch.setattr(engine_args, "_vllm_version", lambda: "vllm 2")
    refused_by_vllm({"a": {}})
    assert len(asked.pools) == 2


def test_a_missing_answer_of_vllm_is_not_cached_as_valid(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_args, "_ask", Asked(None))
    assert refused_by_vllm({"a": {}}) == []
    assert list(cache.rglob("*")) == []


def test_engine_arguments_are_checked_without_a_writable_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "engine-args").write_text("a file where a folder should be")
    monkeypatch.setattr(engine_args, "_ask", Asked([]))
    assert refused_by_vllm({"a": {}}) == []


def test_without_vllm_a_warning_says_that_nothing_was_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_args, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert parse_fleet("name: a\npools: {b: {model: c/d, engine_args: {nonsense: 1}}}\n")
    assert caplog.messages == ["cannot check engine_args: vLLM is not installed here"]


def test_a_vllm_that_cannot_be_imported_is_a_warning(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert refused_by_vllm({"a": {}}) == []
    assert "failed to check engine_args with vLLM" in caplog.text
