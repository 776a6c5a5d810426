"""A model split over two of vLLM's workers says what transformers says with the whole one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.fleets.split_model import split_model
from deployments.engine.watchdog.hang import EngineHealth
from deployments.engine.watchdog.processes import state
from tests.engine_job import told_by
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PROMPTS = ["The capital of France is", "One, two, three,", "Once upon a time there was a"]
TOKENS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    split_model(folder)
    return folder


def ask(warm_python: str, model: Path, freeze: str, **engine_args: Any) -> dict[str, Any]:
    asked = {
        "freeze": freeze,
        "model": str(model),
        "engine_args": {
            "dtype": "float32",
            "max_model_len": 256,
            "max_num_seqs": 4,
            "enforce_eager": True,
            **engine_args,
        },
        "prompts": PROMPTS,
        "max_tokens": TOKENS,
    }
    answer: dict[str, Any] = told_by(
        warm_python,
        "tests.one_engine",
        asked,
        within_s=240,
        env={"OMP_NUM_THREADS": "1", "VLLM_HOST_IP": "127.0.0.1"},
        exit_status=EngineHealth.HUNG,
    )
    return answer


def greedy_answers(model: Path) -> list[list[int]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        said = whole.generate(
            ids, do_sample=False, min_new_tokens=TOKENS, max_new_tokens=TOKENS, pad_token_id=0
        )
        answers.append(said[0, ids.shape[1] :].tolist())
    return answers


async def test_two_workers_answer_like_the_whole_model_and_end_if_one_of_them_hangs(
    warm_python: str,
    model: Path,
) -> None:
    """One engine for both: it starts for longer than it takes to answer."""
    split = ask(warm_python, model, "VLLM::Worker_TP1", tensor_parallel_size=2)
    workers = {title for title in split["processes"].values() if "Worker" in title}
    assert workers == {"VLLM::Worker_TP0", "VLLM::Worker_TP1"}
    await until(lambda: not [pid for pid in split["processes"] if state(int(pid)) not in "XZ"])
    assert split["engines_at_once"] == max(1, len(os.sched_getaffinity(0)) // 2)
    assert [len(ids) for ids in split["token_ids"]] == [TOKENS] * len(PROMPTS)
    assert split["token_ids"] == greedy_answers(model)
