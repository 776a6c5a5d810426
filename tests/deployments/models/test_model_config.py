"""Where a model's config comes from, without a network."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import Problem
from deployments.models.model import embedded_model
from deployments.models.model_config import EMBEDDED_CONFIG, model_config
from weights.model.model_shape import shape_of


def refused(*arguments: Any, **more: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        model_config(*arguments, **more)
    return caught.value


def test_the_config_of_the_embedded_model_is_known_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_CACHE", str(tmp_path))
    assert model_config("embedded") == EMBEDDED_CONFIG


@pytest.mark.real
def test_the_known_config_of_the_embedded_model_matches_the_built_one() -> None:
    made = json.loads((embedded_model(lambda *_: None) / "config.json").read_text())
    assert shape_of(made) == shape_of(EMBEDDED_CONFIG)


def test_a_folders_config_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": 7}')
    monkeypatch.chdir(tmp_path)
    assert model_config("./model") == {"vocab_size": 7}
    assert model_config(str(tmp_path / "model")) == {"vocab_size": 7}


@pytest.mark.parametrize(
    "model", ["/nowhere/model", "./nowhere", "nobody/has-this-model", "s3://bucket/model", "a--b"]
)
def test_the_config_of_an_absent_model_is_unknown(model: str) -> None:
    assert model_config(model) is None


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    error = refused(str(tmp_path))
    assert "holds no config.json" in error.message
    assert error.remedy == "pass the folder of a saved model"


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_damaged_config_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refused(str(tmp_path)).message


def test_a_download_is_asked_for_and_its_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no route\nto the Hub")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    error = refused("nobody/has-this-model", download=True)
    assert error.message.endswith("cannot be downloaded: no route")
