"""Which drafts the roofline finds worth their time."""

from __future__ import annotations

from typing import Any

import pytest

from weights.model.gpus import gpu_called
from weights.model.known_models import known_config
from weights.model.memory import W4A16
from weights.model.model_shape import ModelShape, shape_of
from weights.plan.drafting import DraftEngine, draft_of, planned_draft
from weights.plan.roofline import RooflineEngine, decode_step_s
from weights.speculation.draft_yield import expected_tokens

GPU = gpu_called("a100-80g")


def shape(model: str) -> ModelShape:
    config = known_config(f"meta-llama/{model}")
    assert config is not None
    return shape_of(config)


LARGE = RooflineEngine(shape("Llama-3.1-70B-Instruct"), GPU, W4A16, 4)
SMALL = RooflineEngine(shape("Llama-3.1-8B-Instruct"), GPU, W4A16, 1)
ONE_B = draft_of(LARGE, "draft_model", "1b", shape("Llama-3.2-1B-Instruct"))
NGRAM, EAGLE = DraftEngine("ngram_gpu"), draft_of(LARGE, "eagle3", "head", None)


@pytest.mark.parametrize("draft", [NGRAM, EAGLE])
def test_drafts_pay_off_in_small_batches_and_not_in_large_ones(draft: DraftEngine) -> None:
    found = planned_draft(LARGE, draft, batch=64, most=128, context=2000)
    assert found is not None
    assert found.speedup > 1.3
    assert found.up_to < 128


def test_a_draft_models_passes_without_graphs_cost_most_of_what_it_gains() -> None:
    small = draft_of(SMALL, "draft_model", "1b", shape("Llama-3.2-1B-Instruct"))
    assert planned_draft(SMALL, small, batch=16, most=64, context=2000) is None
    found = planned_draft(LARGE, ONE_B, batch=16, most=64, context=2000)
    assert found is not None and found.speedup < 1.2


def test_more_accurate_drafts_pay_off_in_larger_batches() -> None:
    found = [
        planned_draft(LARGE, NGRAM, batch=32, most=128, context=2000, accepted=share)
        for share in (0.4, 0.6, 0.8)
    ]
    assert [one and one.up_to for one in found] == sorted(one.up_to for one in found if one)
    assert all(found)


def test_n_grams_are_assumed_to_be_accepted_less_often_than_a_models_drafts() -> None:
    found = [
        planned_draft(LARGE, each, batch=32, most=128, context=2000) for each in (NGRAM, EAGLE)
    ]
    assert [one and one.accepted for one in found] == [0.4, 0.6]


def test_n_grams_that_keep_asynchronous_scheduling_gain_more() -> None:
    gains = [
        planned_draft(LARGE, DraftEngine(method), batch=32, most=128, context=2000)
        for method in ("ngram", "ngram_gpu")
    ]
    synchronous, asynchronous = (one.speedup for one in gains if one is not None)
    assert 1 < synchronous < asynchronous


def test_drafts_that_are_never_accepted_are_not_planned() -> None:
    assert planned_draft(LARGE, NGRAM, batch=1, most=1, context=2000, accepted=0.0) is None


def test_a_draft_does_not_pay_off_beyond_its_bound() -> None:
    found = planned_draft(LARGE, NGRAM, batch=64, most=128, context=2000)
    assert found is not None
    beyond = found.up_to + 1
    plain = decode_step_s(LARGE, beyond, 2000)
    checked = decode_step_s(LARGE, beyond, 2000, found.drafted + 1)
    tokens = expected_tokens(found.accepted, found.drafted)
    assert tokens * plain / (checked + NGRAM.passes_s(found.drafted, beyond, 2000)) < 1.05


def test_the_speculative_config_covers_batch_sizes_below_and_above_the_bound() -> None:
    found = planned_draft(LARGE, EAGLE, batch=64, most=128, context=2000)
    assert found is not None
    assert found.speculative_config(4, 128) == {
        "method": "eagle3",
        "model": "head",
        "draft_tensor_parallel_size": 4,
        "num_speculative_tokens": found.drafted,
        "num_speculative_tokens_per_batch_size": [
            [1, found.up_to, found.drafted],
            [found.up_to + 1, 128, 0],
        ],
    }


@pytest.mark.parametrize(("most", "sizes"), [(8, [[1, 7], [8, 8]]), (1, [[1, 1]])])
def test_the_largest_batch_size_gets_no_drafts_when_drafts_pay_at_every_size(
    most: int, sizes: list[Any]
) -> None:
    found = planned_draft(LARGE, NGRAM, batch=1, most=most, context=2000)
    assert found is not None
    config = found.speculative_config(4, most)
    assert [size[:2] for size in config["num_speculative_tokens_per_batch_size"]] == sizes


def test_an_eagle_head_is_counted_without_the_models_token_table() -> None:
    head = shape_of(known_config("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B") or {})
    known, unknown = (draft_of(SMALL, "eagle3", "head", each) for each in (head, None))
    table = SMALL.shape.vocabulary * SMALL.shape.hidden * 2
    assert known.weight_bytes == 2 * head.parameters
    # as many tokens as the model's, where the shape is not known
    assert unknown.weight_bytes - known.weight_bytes == table - 32_000 * 4096 * 2
    assert known.passes_s(2, 8, 2000) < unknown.passes_s(2, 8, 2000)


def test_a_draft_takes_memory_for_weights_and_cache() -> None:
    assert ONE_B.weight_bytes > 500 << 20  # 2.5 GB on four GPUs
    assert ONE_B.kv_token_bytes == 2 * 2 * 16 * 64 * 2  # two heads a GPU, 16 layers, 64 wide
    assert (NGRAM.weight_bytes, NGRAM.kv_token_bytes) == (0, 0)
