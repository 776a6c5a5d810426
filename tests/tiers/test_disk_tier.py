"""What an engine with a disk tier reads is what the index predicts, and it survives all faults."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.engine_job import told_by
from tests.tiers.host_tier import BLOCK, PROMPT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

# The tokens of the prompt's whole blocks.
WHOLE = PROMPT // BLOCK * BLOCK
AMPLE, SMALL = 1 << 30, 3_000_000
VOLUME_BYTES = 40 << 20
Told = dict[str, Any]


@pytest.fixture(scope="module")
def run(
    warm_python: str, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Told]:
    """Runs one engine after the other with the same folder."""
    folder = tmp_path_factory.mktemp("tiers") / "folder"

    def run(
        *steps: str, max_bytes: int = AMPLE, secret: str = "secret", model: Path = small_model
    ) -> Told:
        asked = {
            "model": str(model),
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


@pytest.fixture
def other_revision(small_model: Path, tmp_path: Path) -> Path:
    """The model with other values of the same weights."""
    folder = tmp_path / "model"
    shutil.copytree(small_model, folder)
    for file in folder.glob("*.safetensors"):
        weights = {name: 1.01 * weight for name, weight in load_file(file).items()}
        file.unlink()
        save_file(weights, file, {"format": "pt"})
    return folder


def test_an_engine_with_another_revision_of_the_weights_finds_nothing(
    restarted: Told, run: Callable[..., Told], other_revision: Path
) -> None:
    assert run("restarted", model=other_revision)["steps"]["restarted"]["reused"] == 0


@pytest.fixture
def small_volume(tmp_path: Path) -> Path:
    """A program that does what Python does, for which `tmp_path / "volume"` is a small volume. It
    makes namespaces for users and mounts, so it needs no privileges."""
    (tmp_path / "volume").mkdir()
    volume, python = shlex.quote(str(tmp_path / "volume")), shlex.quote(sys.executable)
    mounted = f'mount -t tmpfs -o size={VOLUME_BYTES} none {volume} && exec {python} "$@"'
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec unshare -rm sh -c {shlex.quote(mounted)} sh "$@"\n')
    program.chmod(0o700)
    tried = subprocess.run([program, "-c", ""], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"users may not mount in a namespace here: {tried.stderr}")
    return program


def test_a_full_volume_costs_computations_only(
    first: Told, small_model: Path, small_volume: Path, tmp_path: Path
) -> None:
    faults = ["full", "nearly_full"]
    asked = {
        "model": str(small_model),
        "folder": str(tmp_path / "volume"),
        "max_bytes": AMPLE,
        "secret": "secret",
        "steps": [*faults, "read", "read"],  # written, and read
        "log": str(tmp_path / "log"),
    }
    steps = told_by(str(small_volume), "tests.tiers.disk_tier", asked, within_s=800)["steps"]
    answers = [steps[fault][ask] for fault in faults for ask in ("computed", "again")]
    expected = first["steps"]["computed"]["token_ids"]
    assert [(answer["reused"], answer["token_ids"]) for answer in answers] == [(0, expected)] * 4
    assert steps["full"]["left"] == steps["nearly_full"]["left"] == []
    # space was freed
    assert (steps["read"]["reused"], steps["read"]["token_ids"]) == (WHOLE, expected)
    log = (tmp_path / "log").read_text()
    assert "block I/O failed: " in log
    assert "No space left on device" in log


def test_the_folder_stays_below_its_size_and_the_index_forgets_what_was_removed(
    restarted: Told, run: Callable[..., Told]
) -> None:
    swept = run("swept", max_bytes=SMALL)["steps"]["swept"]
    assert 0 < swept["bytes"] <= SMALL
    assert swept["loadable"] == swept["reused"] == 0
