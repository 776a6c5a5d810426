"""Speculation on a real engine: what loses is switched off, what wins goes on, answers stay.

The engine measures in layers that it computed, not in seconds: busy cores change no verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine_job import told_by
from weights.speculation.drafts import first_layers

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

# Far more than the verdict takes.
ROUNDS = 60
COPYING = "one two three four five six seven eight nine ten eleven twelve\n" * 5


def speculated(
    python: str, model: Path, config: dict[str, Any], prompts: list[str], until: str
) -> dict[str, Any]:
    """The answers of each round and those that were gone on with (`tests.speculating_engine`), and
    what the engine has learned of its speculation."""
    asked = {
        "model": str(model),
        "engine_args": {
            "dtype": "float32",
            "max_model_len": 1024,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "speculative_config": config,
        },
        "prompts": prompts,
        "max_tokens": 40,
        "until": until,
        "rounds": ROUNDS,
    }
    told: dict[str, Any] = told_by(python, "tests.speculating_engine", asked, within_s=500)
    assert all(ids == told["answers"][0][0] for ids in told["went_on"])
    return told


def test_a_draft_that_slows_decoding_is_disabled_and_answers_stay_the_same(
    warm_python: str, small_model: Path, tmp_path: Path
) -> None:
    first_layers(small_model, 2, tmp_path / "draft")
    draft = {
        "method": "draft_model",
        "model": str(tmp_path / "draft"),
        "num_speculative_tokens": 6,
    }
    # in this answer the draft is wrong at two tokens of three
    told = speculated(warm_python, small_model, draft, ["A recipe for bread:"], until="off")
    answers, known = told["answers"], told["known"]
    assert not known["on"] and known["losing"] and known["speedup"] < 1
    assert known["acceptance"] < 0.8
    # the first with drafts except in trials, the last without any
    assert all(of_round == answers[0] for of_round in answers)


def test_speculation_that_does_not_slow_decoding_stays_enabled(
    warm_python: str, small_model: Path
) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    told = speculated(warm_python, small_model, ngram, [COPYING], until="known")
    answers, known = told["answers"], told["known"]
    assert known["on"] and not known["losing"]
    # n-grams are found without a layer
    assert known["speedup"] > 1
    assert known["tokens_per_pass"] > 1
    assert told["at_once"] > 1  # also of the answers that were gone on with
    assert all(of_round == answers[0] for of_round in answers)
