"""Draft models cut from a model's first layers."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import numpy as tensors

from common.errors import Problem
from weights.speculation.drafts import first_layers, main

EMBEDDINGS = np.arange(12, dtype=np.float32).reshape(4, 3)


def layer(number: int) -> dict[str, np.ndarray]:
    return {
        f"model.layers.{number}.mlp.up_proj.weight": np.full((2, 3), number, np.float16),
        f"model.layers.{number}.norm.weight": np.full(3, number, np.float32),
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Twelve layers in two files, as large models are: layer 10 must not be taken for layer 1."""
    folder = tmp_path / "model"
    folder.mkdir()
    first = {"model.embed_tokens.weight": EMBEDDINGS, **layer(0), **layer(1), **layer(10)}
    second = {f"model.layers.{n}.norm.weight": np.ones(3, np.float32) for n in range(2, 10)}
    second |= {"model.norm.weight": np.ones(3, np.float32), **layer(11)}
    tensors.save_file(first, folder / "model-00001-of-00002.safetensors")
    tensors.save_file(second, folder / "model-00002-of-00002.safetensors")
    config = {"num_hidden_layers": 12, "layer_types": ["full"] * 12, "vocab_size": 4}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "SHA256SUMS").write_text("of the whole model")
    return folder


def test_a_draft_keeps_the_first_layers_and_the_weights_outside_layers(
    model: Path, tmp_path: Path
) -> None:
    first_layers(model, 2, tmp_path / "draft")
    kept = tensors.load_file(tmp_path / "draft" / "model.safetensors")
    outside = {"model.embed_tokens.weight", "model.norm.weight"}
    assert kept.keys() == outside | layer(0).keys() | layer(1).keys()
    assert np.array_equal(kept["model.embed_tokens.weight"], EMBEDDINGS)
    for name, values in layer(1).items():
        assert kept[name].dtype == values.dtype
        assert np.array_equal(kept[name], values)


def test_the_configuration_has_the_given_number_of_layers(model: Path, tmp_path: Path) -> None:
    first_layers(model, 2, tmp_path / "draft")
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config == {"num_hidden_layers": 2, "layer_types": ["full"] * 2, "vocab_size": 4}


def test_a_draft_has_the_tokenizer_and_no_checksums(model: Path, tmp_path: Path) -> None:
    first_layers(model, 2, tmp_path / "draft")
    names = {file.name for file in (tmp_path / "draft").iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json"}


@pytest.mark.parametrize("layers", [0, 12, 13])
def test_a_draft_has_fewer_layers_than_its_model_and_at_least_one(
    model: Path, tmp_path: Path, layers: int
) -> None:
    with pytest.raises(Problem, match=f"{layers} layers .* choose 1 to 11"):
        first_layers(model, layers, tmp_path / "draft")


def test_a_damaged_model_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    file = model / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(Problem, match="is truncated"):
        first_layers(model, 11, tmp_path / "draft")
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_weights_without_recognizable_layers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 12}')
    tensors.save_file({"h.0.weight": EMBEDDINGS}, tmp_path / "model.safetensors")
    with pytest.raises(Problem, match="names its layers"):
        first_layers(tmp_path, 2, tmp_path / "draft")


def test_a_folder_that_is_there_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="already exists"):
        first_layers(model, 2, model)
    assert (model / "SHA256SUMS").exists()


def test_the_command_line_reports_invalid_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "2", str(tmp_path / "draft")]) == 1
    assert "config.json cannot be read" in capsys.readouterr().err
    assert main(["model", "two", "draft"]) == 2
