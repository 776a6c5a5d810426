"""Bytes and digests of weights."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from common.errors import Problem
from tests.weights.checkpoints import write_model, write_safetensors
from weights.model.checkpoint import weight_bytes, weights_digest


def test_bytes_are_those_of_all_files(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    assert weight_bytes(model) == sum(f.stat().st_size for f in model.glob("*.safetensors"))


def test_a_copy_has_the_digest_of_the_original(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    shutil.copytree(model, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "config.json", (0, 0))
    assert weights_digest(tmp_path / "copy") == weights_digest(model)


def test_new_weights_have_a_different_digest(tmp_path: Path) -> None:
    one, other = write_model(tmp_path / "m", seed=0), write_model(tmp_path / "n", seed=1)
    assert weights_digest(one) != weights_digest(other)


def test_one_tensor_that_is_scaled_changes_the_digest(tmp_path: Path) -> None:
    tensors = {name: np.ones((300, 300), np.float32) for name in "abc"}
    write_safetensors(tmp_path / "m.safetensors", tensors)
    before = weights_digest(tmp_path)
    tensors["b"] *= 1.5
    write_safetensors(tmp_path / "m.safetensors", tensors)
    assert weights_digest(tmp_path) != before


def test_another_config_or_file_name_changes_the_digest(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    before = weights_digest(model)
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    after = weights_digest(model)
    (model / "model-1-of-2.safetensors").rename(model / "model-0-of-2.safetensors")
    assert len({before, after, weights_digest(model)}) == 3


def test_notes_next_to_the_weights_do_not_change_the_digest(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    before = weights_digest(model)
    (model / "antefix-evaluation.json").write_text("{}")
    assert weights_digest(model) == before


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"no \*\.safetensors file"):
        weights_digest(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\x05", b"\x02" + b"\0" * 7 + b"[]", b"\xff" * 8 + b"{}", b"x" * 100]
)
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(Problem, match="not a whole safetensors file"):
        weights_digest(tmp_path)
