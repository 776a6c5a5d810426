"""What a plan says: the fewest GPUs that meet the target, and clear words where none do."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from common.errors import Problem
from deployments.fleet.fleet_file import parse_fleet
from deployments.models.model_config import EMBEDDED_CONFIG
from tests.some import some
from tests.weights.planned import ENGINE_ARGS
from weights.model.cache_dtype import CACHE_DTYPES
from weights.model.gpus import GPUS, gpu_called
from weights.model.known_models import known_config
from weights.model.memory import BF16, GIB, W4A16, W8A8, weight_bytes
from weights.model.model_shape import ModelShape, shape_of
from weights.plan.plan import Drafter, Plan, plan_for
from weights.plan.plan_fleet import fleet_yaml
from weights.plan.plan_text import as_json, by_load, lines, rows
from weights.plan.roofline import RooflineEngine, decode_step_s
from weights.plan.sizing import SizingTarget, option_for

SHAPES = {
    name: shape_of(known_config(name) or {})
    for name in (
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-70B-Instruct",
        "Qwen/Qwen3-30B-A3B",
        "deepseek-ai/DeepSeek-V3",
    )
}
LLAMA_8B, LLAMA_70B = list(SHAPES.values())[:2]
EMBEDDED = shape_of(EMBEDDED_CONFIG)
A100 = gpu_called("a100-80g")
INT8_CACHE = CACHE_DTYPES["int8_per_token_head"]
TARGET = SizingTarget(
    8192, 2000, 400, ttft_s=2, tpot_s=0.05, concurrency=100, price_per_gpu_hour=1.3
)

targets = st.builds(
    SizingTarget,
    context=st.integers(2048, 32768),
    prompt=st.integers(1, 1500),
    output=st.integers(1, 500),
    ttft_s=st.floats(0.1, 5),
    tpot_s=st.one_of(st.none(), st.floats(0.01, 0.2)),
    concurrency=st.integers(1, 2000),
    rate=st.one_of(st.none(), st.floats(0.1, 100)),
    long_prompt=st.one_of(st.none(), st.integers(1500, 2000)),
)
shapes = st.sampled_from(list(SHAPES.values()))
gpus = st.sampled_from(GPUS)


def planned(shape: ModelShape, gpu: Any, target: SizingTarget) -> Plan | None:
    try:
        return plan_for(shape, gpu, target)
    except Problem:
        return None


def assumed(shape: ModelShape, gpu: Any, target: SizingTarget) -> Plan:
    """Return the plan. Most examples have one; Hypothesis fails if hardly any has."""
    plan = planned(shape, gpu, target)
    assume(plan is not None)
    assert plan is not None
    return plan


@given(shapes, gpus, targets)
@settings(max_examples=settings().max_examples // 2)
def test_every_option_meets_the_target(shape: ModelShape, gpu: Any, target: SizingTarget) -> None:
    plan = assumed(shape, gpu, target)
    for option in some(plan.options):
        assert option.speed.ttft_p99_s <= target.ttft_s
        assert target.tpot_s is None or option.speed.tpot_s <= target.tpot_s
        assert option.replicas * option.concurrency >= (target.concurrency or 0)
        assert option.replicas * option.speed.requests_s >= (target.rate or 0) * (1 - 1e-9)
        assert option.budget.kv >= 0
        assert option.gpus >= plan.chosen.gpus


@given(shapes, gpus, targets, st.integers(1, 100_000))
@settings(max_examples=settings().max_examples // 2)
def test_a_longer_context_never_holds_more(
    shape: ModelShape, gpu: Any, target: SizingTarget, longer: int
) -> None:
    """At full context, on each precision and number of GPUs; whatever fits long, fits short."""
    long = assumed(shape, gpu, replace(target, context=target.context + longer))
    short = planned(shape, gpu, target)
    assert short is not None
    held_short, held_long = (
        {(option.engine.precision, option.engine.tp): option.at_full_context for option in options}
        for options in (short.options, long.options)
    )
    both = held_short.keys() & held_long.keys()
    assume(both)
    assert all(held_long[key] <= held_short[key] for key in some(both))


@given(shapes, gpus, targets)
@settings(max_examples=settings().max_examples // 2)
def test_more_memory_never_takes_more_gpus(
    shape: ModelShape, gpu: Any, target: SizingTarget
) -> None:
    small = assumed(shape, gpu, target)
    large = planned(shape, replace(gpu, memory_bytes=gpu.memory_bytes * 2), target)
    assert large is not None
    assert large.chosen.gpus <= small.chosen.gpus


def test_the_fewest_gpus_are_chosen() -> None:
    plan = plan_for(LLAMA_70B, A100, TARGET)
    assert plan.chosen.gpus == min(option.gpus for option in plan.options)


def test_weights_with_more_bits_are_chosen_if_the_number_of_gpus_is_equal() -> None:
    plan = plan_for(LLAMA_8B, gpu_called("h100"), replace(TARGET, concurrency=10))
    assert {option.gpus for option in plan.options} == {1}
    assert plan.chosen.engine.precision.name == "bf16"


def test_a_small_load_on_a_large_model_is_planned_with_four_bits() -> None:
    plan = plan_for(LLAMA_70B, A100, replace(TARGET, concurrency=1))
    assert plan.chosen.engine.precision.name == "w4a16"


def test_a_large_load_on_a_large_model_is_planned_with_eight_bits() -> None:
    assert plan_for(LLAMA_70B, A100, TARGET).chosen.engine.precision.name == "w8a8"


def test_a_precision_that_a_gpu_lacks_is_refused_with_the_reason() -> None:
    refused = {r.precision.name: r.reason for r in plan_for(LLAMA_8B, A100, TARGET).refused}
    assert refused == {"fp8": "a100-80g does not compute fp8"}


def test_a_model_that_does_not_fit_is_refused_with_the_reason() -> None:
    large = shape_of(known_config("meta-llama/Llama-3.1-405B-Instruct") or {})
    plan = plan_for(large, gpu_called("h100"), TARGET)
    assert {r.precision.name: r.reason for r in plan.refused} == {"bf16": "does not fit"}


def test_a_plan_has_enough_replicas_for_the_request_rate() -> None:
    by_rate = replace(TARGET, concurrency=None, rate=20.0)
    plan = plan_for(LLAMA_8B, A100, by_rate)
    twice = plan_for(LLAMA_8B, A100, replace(by_rate, rate=40.0))
    assert 2 * plan.chosen.gpus - 1 <= twice.chosen.gpus <= 2 * plan.chosen.gpus


def test_each_of_many_replicas_serves_more_requests_than_each_of_few() -> None:
    """A prompt goes to the replica that begins it first."""
    engine = RooflineEngine(LLAMA_70B, A100, W8A8, 2)
    few, many = (option_for(engine, replace(TARGET, concurrency=n)) for n in (8, 64))
    assert few.replicas < many.replicas
    assert few.concurrency < many.concurrency


def test_long_prompts_take_more_gpus_per_replica() -> None:
    """What one of a hundred takes counts: the SLO is met by 99 of them."""
    short, long = (
        plan_for(LLAMA_70B, A100, replace(TARGET, concurrency=1, long_prompt=tokens)).chosen
        for tokens in (None, 7000)
    )
    assert short.engine.tp < long.engine.tp


@pytest.mark.parametrize("tokens", [1999, 8192])
def test_an_impossible_long_prompt_is_rejected(tokens: int) -> None:
    with pytest.raises(Problem, match=f"a long prompt of {tokens} tokens"):
        plan_for(LLAMA_8B, A100, replace(TARGET, long_prompt=tokens))


def test_one_replica_is_always_warm_and_more_for_larger_loads() -> None:
    assert plan_for(LLAMA_8B, A100, replace(TARGET, concurrency=1)).warm == 1
    assert plan_for(LLAMA_8B, A100, replace(TARGET, concurrency=30_000)).warm > 1


def test_overflow_is_planned_where_it_takes_fewer_gpus_than_one_more_replica() -> None:
    plan = plan_for(LLAMA_70B, A100, TARGET)
    assert plan.overflow is not None
    assert plan.overflow.option.engine.tp < plan.chosen.engine.tp
    assert plan_for(LLAMA_8B, gpu_called("h100"), TARGET).overflow is None


def test_a_cache_in_8_bit_holds_more_and_saves_no_time() -> None:
    sixteen = plan_for(LLAMA_70B, A100, TARGET)
    eight = plan_for(LLAMA_70B, A100, replace(TARGET, cache=INT8_CACHE))
    engine = replace(sixteen.chosen.engine, cache=INT8_CACHE)
    assert eight.options[0].at_full_context > 1.9 * sixteen.options[0].at_full_context
    assert decode_step_s(engine, 8, 4096) == decode_step_s(sixteen.chosen.engine, 8, 4096)
    pool = parse_fleet(fleet_yaml(eight, "x/y"), check_engine_args=False).pools["y"]
    assert pool.engine_args["kv_cache_dtype"] == "int8_per_token_head"


def test_drafting_pays_off_while_decoding_is_memory_bound() -> None:
    target = replace(TARGET, concurrency=1)
    alone = plan_for(LLAMA_8B, A100, target)
    crowd = plan_for(LLAMA_8B, A100, SizingTarget(512, 64, 64, ttft_s=60, concurrency=256))
    assert alone.draft is not None and crowd.draft is not None
    assert alone.draft.speedup > 1.5
    assert alone.draft.at_load == alone.draft.speedup
    assert crowd.draft.at_load == 1.0


def test_a_draft_that_leaves_no_room_for_a_request_is_not_planned() -> None:
    """8 GB of it with 16 GB of the model leave no cache on a GPU of 24."""
    drafter = Drafter("draft_model", "same", LLAMA_8B)
    target = SizingTarget(2048, 1024, 256, ttft_s=10, concurrency=1)
    alone = plan_for(LLAMA_8B, gpu_called("l4"), target, Drafter())
    assert alone.draft is not None
    assert plan_for(LLAMA_8B, gpu_called("l4"), target, drafter).draft is None


def test_costs_are_planned_only_with_a_price() -> None:
    cheap = plan_for(LLAMA_8B, A100, TARGET)
    dear = plan_for(LLAMA_8B, A100, replace(TARGET, price_per_gpu_hour=2.6))
    assert cheap.cost_output is not None and dear.cost_output is not None
    assert dear.cost_output == pytest.approx(2 * cheap.cost_output)
    assert plan_for(LLAMA_8B, A100, replace(TARGET, price_per_gpu_hour=None)).cost_all is None


@pytest.mark.parametrize(
    ("shape", "gpu", "target", "words"),
    [
        (LLAMA_8B, "l4", replace(TARGET, context=200_000), "exceeds the model's 131072"),
        (LLAMA_8B, "l4", replace(TARGET, prompt=8000), "exceed the context of 8192"),
        (LLAMA_8B, "a100-80g", replace(TARGET, cache=CACHE_DTYPES["fp8"]), "no FP8 arithmetic"),
        (
            SHAPES["deepseek-ai/DeepSeek-V3"],
            "h200",
            replace(TARGET, cache=INT8_CACHE),
            "vLLM's kernels for latent attention cannot read a KV cache of int8_per_token_head",
        ),
        (LLAMA_70B, "l4", replace(TARGET, context=131072), None),
        (
            SHAPES["deepseek-ai/DeepSeek-V3"],
            "l4",
            TARGET,
            r"GiB per GPU are missing.*plan for h200 or b200",
        ),
        (LLAMA_70B, "a100-80g", replace(TARGET, ttft_s=0.01), r"best reachable is ttft=0\.\d+"),
    ],
)
def test_the_error_for_an_impossible_target_states_the_figure(
    shape: ModelShape, gpu: str, target: SizingTarget, words: str | None
) -> None:
    if words is None:
        assert planned(shape, gpu_called(gpu), target) is not None
        return
    with pytest.raises(Problem, match=words):
        plan_for(shape, gpu_called(gpu), target)


@given(shapes, gpus, targets)
@settings(max_examples=settings().max_examples // 2)
def test_every_plan_is_a_fleet_file(shape: ModelShape, gpu: Any, target: SizingTarget) -> None:
    plan = planned(shape, gpu, target)
    if plan is None:
        return
    fleet = parse_fleet(fleet_yaml(plan, "someone/Some_Model-7B"), check_engine_args=False)
    pool = fleet.pools["some-model-7b"]
    assert pool.first_replicas == plan.chosen.replicas + plan.warm
    assert pool.tensor_parallel == plan.chosen.engine.tp


def test_the_engine_arguments_are_those_that_vllm_is_asked_about() -> None:
    """In test_args.py of `deployments.engine.vllm`, where one process asks about many."""
    plan = plan_for(LLAMA_70B, gpu_called("h100"), replace(TARGET, cache=CACHE_DTYPES["fp8"]))
    pool = parse_fleet(fleet_yaml(plan, "x/y"), check_engine_args=False).pools["y"]
    told = dict(pool.engine_args)
    assert {**told, "max_num_seqs": ENGINE_ARGS["max_num_seqs"]} == ENGINE_ARGS


def test_the_fleet_file_names_the_command_that_quantizes_the_model() -> None:
    text = fleet_yaml(plan_for(LLAMA_70B, A100, TARGET), "meta-llama/Llama-3.1-70B-Instruct")
    assert "# first: antefix quantize meta-llama/Llama-3.1-70B-Instruct --scheme awq" in text
    pools = yaml.safe_load(text)["pools"]
    for pool in pools.values():
        assert f"--output-dir {pool['model']}\n" in text


def test_a_quantized_folder_is_next_to_its_source() -> None:
    text = fleet_yaml(plan_for(LLAMA_70B, A100, TARGET), "./models/Mine")
    assert yaml.safe_load(text)["pools"]["mine"]["model"] == "./models/Mine-w8a8-smoothquant"


def test_an_already_quantized_model_is_planned_as_it_is() -> None:
    deepseek = SHAPES["deepseek-ai/DeepSeek-V3"]
    plan = plan_for(deepseek, gpu_called("h200"), replace(TARGET, concurrency=4))
    assert [option.engine.precision.name for option in plan.options] == ["fp8"]
    text = fleet_yaml(plan, "deepseek-ai/DeepSeek-V3")
    assert "antefix quantize" not in text
    assert yaml.safe_load(text)["pools"]["deepseek-v3"]["model"] == "deepseek-ai/DeepSeek-V3"


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}


def test_groups_are_taken_as_they_are_stored() -> None:
    plan = plan_for(replace(LLAMA_8B, quantization=AWQ), A100, replace(TARGET, concurrency=4))
    assert plan.chosen.engine.precision == replace(W4A16, group_size=64)


@pytest.mark.parametrize(
    ("stored", "gpu", "words"),
    [
        ({"quant_method": "fp8"}, "a100-80g", "stored as fp8: a100-80g does not compute fp8"),
        ({"quant_method": "bitsandbytes"}, "h100", "bitsandbytes, which cannot be planned"),
    ],
)
def test_weights_in_a_format_that_the_gpu_lacks_are_refused(
    stored: dict[str, Any], gpu: str, words: str
) -> None:
    with pytest.raises(Problem, match=words):
        plan_for(replace(LLAMA_8B, quantization=stored), gpu_called(gpu), TARGET)


def test_the_table_marks_the_choice_and_the_lines_name_it() -> None:
    plan = plan_for(LLAMA_70B, A100, TARGET)
    marked = [row for row in rows(plan) if row[0].endswith("*")]
    assert [row[0] for row in marked] == ["w8a8 *"]
    told = "\n".join(lines(plan))
    assert "w8a8 on 4 x a100-80g: 3 serving, 1 warm" in told
    assert f"below a batch of {plan.crossover} sequences, w8a8 from there" in by_load(plan)


def test_a_model_with_experts_is_planned_with_the_size_of_int8_experts() -> None:
    moe = plan_for(SHAPES["Qwen/Qwen3-30B-A3B"], A100, TARGET)
    (line,) = [line for line in lines(moe) if "int8_per_channel_weight_only" in line]
    told = float(line.partition("): ")[2].partition(" GiB")[0])
    # all of it in 8 bit, and nothing of it, on as many GPUs
    tp = moe.chosen.engine.tp
    whole = {precision: weight_bytes(moe.shape, precision, tp) / GIB for precision in (W8A8, BF16)}
    assert whole[W8A8] < told < 0.6 * whole[BF16]
    assert "int8_per_channel_weight_only" not in "\n".join(lines(plan_for(LLAMA_8B, A100, TARGET)))


def test_the_json_object_has_the_contents_of_the_table() -> None:
    plan = plan_for(LLAMA_70B, A100, TARGET)
    told = as_json(plan)
    assert [option["weights"] for option in told["options"]] == ["bf16", "w8a8", "w4a16"]
    assert [option["gpus"] for option in told["options"] if option["chosen"]] == [plan.chosen.gpus]
    assert told["gpus"] == plan.gpus


def test_the_embedded_model_is_planned_too() -> None:
    plan = plan_for(
        EMBEDDED, gpu_called("l4"), SizingTarget(2048, 500, 100, ttft_s=1, concurrency=20)
    )
    assert plan.chosen.engine.tp == 1
