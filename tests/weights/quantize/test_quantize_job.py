"""A job is resumed only by the same job."""

import dataclasses
import os
from pathlib import Path

import pytest

from weights.quantize.quantize_job import QuantizeJob


@pytest.fixture
def job(tmp_path: Path) -> QuantizeJob:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    text = tmp_path / "text.txt"
    text.write_text("text")
    return QuantizeJob(str(model), None, "awq", None, 1, str(text), 4, 128)


def test_a_job_is_unchanged_after_a_json_round_trip(job: QuantizeJob) -> None:
    again = QuantizeJob.from_json(job.to_json())
    assert again == job
    assert again.digest() == job.digest()


def test_a_different_option_is_a_different_job(job: QuantizeJob) -> None:
    assert dataclasses.replace(job, samples=5).digest() != job.digest()
    assert dataclasses.replace(job, options={"grid": 5}).digest() != job.digest()


def test_a_different_text_in_the_same_file_is_a_different_job(
    job: QuantizeJob, tmp_path: Path
) -> None:
    before = job.digest()
    (tmp_path / "text.txt").write_text("another")
    assert job.digest() != before


def test_different_weights_in_the_same_folder_are_a_different_job(job: QuantizeJob) -> None:
    before = job.digest()
    os.utime(Path(job.source) / "model.safetensors", ns=(0, 0))
    assert job.digest() != before
