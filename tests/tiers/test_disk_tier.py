"""What an engine with a disk tier reads is what the index predicts, and it survives all faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine_job import told_by
from tests.tiers.host_tier import BLOCK, PROMPT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

# The tokens of the prompt's whole blocks.
WHOLE = PROMPT // BLOCK * BLOCK
AMPLE, SMALL = 1 << 30, 3_000_000
Told = dict[str, Any]


@pytest.fixture(scope="module")
def run(
    warm_python: str, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Told]:
    """Runs one engine after the other with the same folder."""
    folder = tmp_path_factory.mktemp("tiers") / "folder"

    def run(*steps: str, max_bytes: int = AMPLE, secret: str = "secret") -> Told:
        asked = {
            "model": str(small_model),
            "folder": str(folder),
            "max_bytes": max_bytes,
            "secret": secret,
            "steps": steps,
        }
        told: Told = told_by(warm_python, "tests.tiers.disk_tier", asked, within_s=800)
        return told

    return run


@pytest.fixture(scope="module")
def first(run: Callable[..., Told]) -> Told:
    return run("computed", "read", "refused", "host_only", "salted", "names", "some")


@pytest.fixture(scope="module")
def restarted(first: Told, run: Callable[..., Told]) -> Told:
    return run("restarted", "truncated", "unwritable", "deleted", "read")


def test_a_prefix_that_left_both_memories_is_read_with_the_same_answer(first: Told) -> None:
    computed, read = first["steps"]["computed"], first["steps"]["read"]
    assert computed["reused"] == 0
    assert read["in_cache"] == 0
    assert read["loadable"] == read["reused"] == WHOLE
    assert read["token_ids"] == computed["token_ids"]


@pytest.mark.parametrize("step", ["refused", "host_only"])
def test_a_request_that_refuses_the_disk_reads_nothing(first: Told, step: str) -> None:
    refused = first["steps"][step]
    assert refused["reused"] == 0 < refused["loadable"]
    assert refused["token_ids"] == first["steps"]["computed"]["token_ids"]


def test_another_cache_salt_finds_nothing_on_the_disk(first: Told) -> None:
    assert first["steps"]["salted"]["reused"] == 0


def test_the_index_predicts_what_each_random_request_reuses(first: Told) -> None:
    some = first["steps"]["some"]
    assert [reused for _, _, reused in some] == [most for _, most, _ in some]
    assert any(cached < most for cached, most, _ in some)


def test_names_of_files_are_no_hashes_of_blocks(first: Told) -> None:
    names = first["steps"]["names"]
    assert names["names"]
    assert names["hashes"]
    assert not set(names["names"]) & set(names["hashes"])
    assert names["modes"] == ["0o700"]


def test_an_engine_measures_how_fast_it_reads(first: Told) -> None:
    assert first["disk_load_rate"] > 0


def test_a_restarted_engine_knows_and_reads_the_files_of_the_one_before(
    first: Told, restarted: Told
) -> None:
    again = restarted["steps"]["restarted"]
    assert again["in_cache"] == 0
    assert again["loadable"] == again["reused"] == WHOLE
    assert again["token_ids"] == first["steps"]["computed"]["token_ids"]


@pytest.mark.parametrize("fault", ["truncated", "unwritable", "deleted"])
def test_files_that_cannot_be_read_or_written_cost_a_computation_only(
    first: Told, restarted: Told, fault: str
) -> None:
    after = restarted["steps"][fault]
    assert after["reused"] == 0
    assert after["token_ids"] == first["steps"]["computed"]["token_ids"]


def test_the_tier_recovers_after_its_folder_was_removed(restarted: Told) -> None:
    read = restarted["steps"]["read"]
    assert read["loadable"] == read["reused"] == WHOLE


def test_an_engine_of_another_fleet_finds_nothing(
    restarted: Told, run: Callable[..., Told]
) -> None:
    assert run("restarted", secret="another")["steps"]["restarted"]["reused"] == 0


def test_the_folder_stays_below_its_size_and_the_index_forgets_what_was_removed(
    restarted: Told, run: Callable[..., Told]
) -> None:
    swept = run("swept", max_bytes=SMALL)["steps"]["swept"]
    assert 0 < swept["bytes"] <= SMALL
    assert swept["loadable"] == swept["reused"] == 0
