"""Which models an engine loads from folders, and when it does without the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployments.engine.start.local_models import LocalModels, local_models
from deployments.fleet.pool import Pool
from tests.fakes.hub_cache import downloaded

MODEL, DRAFT = "acme/chat-70b", "acme/chat-1b"
DRAFTING = {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 2}


def find_local_models(home: Path, **engine_args: Any) -> LocalModels:
    pool = Pool(model=MODEL, engine_args=engine_args)
    return local_models(pool, {"HF_HOME": str(home)})


def test_an_engine_with_a_complete_model_needs_no_hub(tmp_path: Path) -> None:
    folder = downloaded(tmp_path, MODEL)
    args = {"quantization": "awq_marlin", "dtype": "float16", "tool_call_parser": "llama3_json"}
    assert find_local_models(tmp_path, **args) == LocalModels({MODEL: str(folder)}, is_offline=True)


def test_an_incomplete_model_is_loaded_from_the_hub(tmp_path: Path) -> None:
    assert find_local_models(tmp_path) == LocalModels({}, is_offline=False)


def test_an_incomplete_draft_is_loaded_from_the_hub(tmp_path: Path) -> None:
    folder = downloaded(tmp_path, MODEL)
    expected = LocalModels({MODEL: str(folder)}, is_offline=False)
    assert find_local_models(tmp_path, speculative_config=DRAFTING) == expected


def test_a_draft_is_loaded_from_its_folder_too(tmp_path: Path) -> None:
    folders = {MODEL: str(downloaded(tmp_path, MODEL)), DRAFT: str(downloaded(tmp_path, DRAFT))}
    expected = LocalModels(folders, is_offline=True)
    assert find_local_models(tmp_path, speculative_config=DRAFTING) == expected


@pytest.mark.parametrize(
    "args",
    [
        {"tokenizer": "gpt2"},
        {"trust_remote_code": True},
        {"enable_lora": True},
        {"enable-lora": True, "lora-modules": ["sql=acme/sql"]},
        {"default_mm_loras": {"audio": "acme/audio"}},
    ],
)
def test_files_that_the_download_lacks_still_come_from_the_hub(
    tmp_path: Path, args: dict[str, Any]
) -> None:
    downloaded(tmp_path, MODEL)
    assert not find_local_models(tmp_path, **args).is_offline


def test_stages_on_several_nodes_load_by_the_models_id(tmp_path: Path) -> None:
    downloaded(tmp_path, MODEL)
    assert find_local_models(tmp_path, pipeline_parallel_size=2) == LocalModels({})


def test_two_revisions_of_one_model_are_loaded_by_its_id(tmp_path: Path) -> None:
    downloaded(tmp_path, MODEL)
    draft = {**DRAFTING, "model": MODEL, "revision": "v2"}
    assert find_local_models(tmp_path, speculative_config=draft) == LocalModels({})


def test_a_folder_of_the_fleet_file_needs_no_marker(tmp_path: Path) -> None:
    pool = Pool(model=str(tmp_path), served_model_name="chat")
    assert local_models(pool, {"HF_HOME": str(tmp_path)}) == LocalModels({})
