"""What tune-speculation tries, and refuses, before an engine is loaded."""

import json
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as tensors

from common.errors import Problem
from deployments.fleet.pool import Pool
from deployments.offline import speculation_ways as ways
from deployments.offline.speculation_ways import Draft
from tests.some import some

MTP = {"method": "mtp", "num_speculative_tokens": 3}


def model_in(folder: Path, vocabulary: int = 4) -> Path:
    folder.mkdir()
    config = {"num_hidden_layers": 2, "vocab_size": vocabulary}
    (folder / "config.json").write_text(json.dumps(config))
    layers = {f"model.layers.{n}.norm.weight": np.ones(3, np.float32) for n in range(2)}
    tensors.save_file(layers, folder / "model.safetensors")
    return folder


def test_lengths_are_tried_in_order_and_once() -> None:
    assert ways.lengths_of("4, 1,4") == (1, 4)


@pytest.mark.parametrize("text", ["0", "1,-2", "two", "", "1,,2"])
def test_lengths_below_one_and_other_words_are_refused(text: str) -> None:
    with pytest.raises(Problem, match=r"not a list of numbers above 0; write it as 1,2,4"):
        ways.lengths_of(text)


@pytest.mark.parametrize(
    ("text", "has_own", "draft", "methods"),
    [
        (None, False, Draft(), ("ngram", "suffix")),
        (None, True, Draft(), ()),
        (None, True, Draft(layers=2), ("draft_model",)),
        (None, False, Draft("a/b"), ("ngram", "suffix", "draft_model")),
        ("suffix, ngram,suffix", True, Draft(), ("suffix", "ngram")),
        ("ngram_gpu", False, Draft(), ("ngram_gpu",)),
    ],
)
def test_default_methods_depend_on_the_model_and_the_draft(
    text: str | None, has_own: bool, draft: Draft, methods: tuple[str, ...]
) -> None:
    assert ways.methods_of(text, has_own, draft) == methods


@pytest.mark.parametrize(
    ("text", "draft", "words"),
    [
        ("eagle", Draft(), "to try EAGLE, MTP or another, set it in the pool's"),
        ("draft_model", Draft(), "add --draft or --draft-layers"),
        ("ngram", Draft("a/b"), "add draft_model to it"),
        (None, Draft("a/b", 2), "remove one of them"),
    ],
)
def test_methods_that_do_not_fit_the_model_are_refused(
    text: str | None, draft: Draft, words: str
) -> None:
    with pytest.raises(Problem, match=words):
        ways.methods_of(text, False, draft)


def test_the_speculation_of_the_pool_is_tried_up_to_its_own_length() -> None:
    tried, _ = ways.ways_of(MTP, ("ngram",), (1, 2, 5), None)
    assert [(way.name, way.lengths) for way in tried] == [
        ("as in the fleet file", (1, 2, 3)),
        ("ngram", (1, 2, 5)),
    ]


def test_both_methods_of_n_grams_look_for_the_same_repetitions() -> None:
    host, gpu = ways.ways_of(None, ("ngram", "ngram_gpu"), (2,), None)[0]
    assert dict(gpu.config) == {**host.config, "method": "ngram_gpu"}


def test_suffix_is_left_out_where_its_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "find_spec", lambda name: None)
    tried, left_out = ways.ways_of(None, ("ngram", "suffix"), (2,), None)
    assert [way.name for way in tried] == ["ngram"]
    assert "pip install arctic-inference" in left_out[0]


def test_suffix_must_not_remember_the_answers_of_earlier_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "find_spec", lambda name: util.find_spec("json"))
    own = {"method": "suffix", "suffix_decoding_max_cached_requests": 500}
    for way in some(ways.ways_of(own, ("suffix",), (2,), None)[0]):
        assert way.config["suffix_decoding_max_cached_requests"] == 0


@pytest.mark.parametrize(
    "engine_args",
    [
        {"speculative-config": MTP},
        {"spec_method": "mtp", "spec-tokens": 3},
        {"speculative_config": {"num-speculative-tokens": 3}, "spec_method": "mtp"},
    ],
)
def test_every_spelling_of_the_pools_speculation_settings_is_read(
    engine_args: dict[str, Any],
) -> None:
    pool = Pool(model="a/b", engine_args={**engine_args, "dtype": "float32"})
    assert ways.own_config(pool) == MTP
    args = ways.engine_args_without(pool, 8, apart=True)
    assert args == {"dtype": "float32", "max_num_seqs": 8, "enable_prefix_caching": False}


@pytest.mark.parametrize(("given", "each"), [(None, 0.45), (0.3, 0.3), (0.9, 0.45)])
def test_two_engines_share_the_memory_of_a_gpu(given: float | None, each: float) -> None:
    pool = Pool(model="a/b", engine_args={"gpu_memory_utilization": given})
    assert ways.engine_args_without(pool, 8, apart=False)["gpu_memory_utilization"] == each
    alone = ways.engine_args_without(pool, 8, apart=True)
    assert alone["gpu_memory_utilization"] == given


def test_a_draft_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    model, draft = model_in(tmp_path / "model"), model_in(tmp_path / "draft", vocabulary=5)
    pool = Pool(model=str(model))
    with pytest.raises(Problem, match=r"vocabulary of 5 tokens, .*model of 4"):
        ways.draft_of(Draft(str(draft)), str(model), pool)
    assert ways.draft_of(Draft(str(model)), str(model), pool) == str(model)


def test_a_draft_is_created_once_and_again_when_the_model_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_CACHE", str(tmp_path / "cache"))
    model = model_in(tmp_path / "model")
    pool = Pool(model=str(model))
    first = ways.draft_of(Draft(layers=1), str(model), pool)
    assert first is not None
    assert first == ways.draft_of(Draft(layers=1), str(model), pool)
    assert list(tensors.load_file(Path(first) / "model.safetensors")) == [
        "model.layers.0.norm.weight"
    ]
    layers = {f"model.layers.{n}.norm.weight": np.zeros(3, np.float32) for n in range(2)}
    tensors.save_file(layers, model / "model.safetensors")
    assert ways.draft_of(Draft(layers=1), str(model), pool) != first


def test_a_model_that_is_no_folder_cannot_be_cut() -> None:
    with pytest.raises(Problem, match=r"a/b is not a folder; set .* to a folder, or pass --draft"):
        ways.draft_of(Draft(layers=1), "a/b", Pool(model="a/b"))
