"""Properties of the check of weights; its page has every rule."""

import re
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weights.kernels.divisions import degrees, uneven_over
from weights.kernels.finding import Device, EngineConfig, Finding, Model, Rule
from weights.kernels.fits import weight_bytes_of
from weights.kernels.kernels import MARLIN_GROUPS, METHODS, Stored, stored_in, verdicts
from weights.kernels.preflight import findings, overflow_findings
from weights.model.gpus import GPUS
from weights.model.known_models import known_config
from weights.model.memory import BF16, GIB
from weights.model.model_shape import ModelShape, shape_of
from weights.plan.drafting import Method, draft_of
from weights.plan.roofline import RooflineEngine

PAGE = Path(__file__).parents[3] / "docs" / "preflight.md"

LENGTH = re.compile(r"Set max_model_len to at most (\d+),")

lengths = st.integers(1, 1 << 20)
sizes = st.integers(1, 1 << 38)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def quantizations() -> st.SearchStrategy[dict[str, Any]]:
    """What might stand in a config.json, by the right names and of any kind."""
    names = ("weights", "input_activations", "targets", "num_bits", "group_size")
    fields = st.fixed_dictionaries({}, optional=dict.fromkeys(names, json_values))
    return st.fixed_dictionaries(
        {"quant_method": st.sampled_from([*METHODS, "", "x"]) | json_values},
        optional={
            "config_groups": json_values
            | st.dictionaries(st.text(max_size=3), fields | json_values),
            "ignore": json_values,
            "bits": json_values,
            "group_size": json_values,
            "weight_block_size": json_values,
        },
    )


def shapes(**more: Any) -> st.SearchStrategy[ModelShape]:
    heads = st.sampled_from([8, 9, 12, 32, 40, 64])
    return st.builds(
        ModelShape,
        architecture=st.just("LlamaForCausalLM"),
        layers=st.integers(1, 80),
        hidden=st.sampled_from([576, 1024, 4096, 8192]),
        heads=heads,
        kv_heads=st.sampled_from([1, 2, 3, 4, 8]),
        head_dim=st.sampled_from([64, 128]),
        intermediate=st.sampled_from([1536, 8192, 11008, 14336]),
        vocabulary=st.sampled_from([32000, 128256]),
        tied_embeddings=st.booleans(),
        max_context=st.sampled_from([None, 8192, 131072]),
        dtype=st.just("bfloat16"),
        quantization=quantizations() | st.none(),
        **more,
    )


def mistral(experts: int) -> ModelShape:
    """As wide and deep as Mistral 7B; with `experts` in each layer, as Mixtral."""
    return ModelShape(
        architecture="MistralForCausalLM",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=14336,
        vocabulary=32000,
        tied_embeddings=False,
        max_context=8192,
        dtype="bfloat16",
        experts=experts,
        experts_per_token=2,
        expert_intermediate=14336,
    )


def least_memory(model: Model, engine: EngineConfig, draft: Model | None) -> int:
    """Bytes of a GPU with which the model, with its draft, is no longer refused."""

    def is_refused(memory: int) -> bool:
        device = Device("GPU", (8, 0), memory)
        return refuses("memory", findings(model, engine, device, draft))

    return bisect_left(range(200 * GIB), True, key=lambda memory: not is_refused(memory))


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_draft_takes_the_memory_that_the_plan_counts_for_it(method: Method) -> None:
    target, small = (
        shape_of(known_config(f"meta-llama/Llama-3.{name}-Instruct") or {})
        for name in ("1-70B", "2-1B")
    )
    shape = small if method == "draft_model" else replace(target, layers=1)
    draft = Model("draft" if method == "draft_model" else "eagle3-head", shape)
    context, tp = 8192, 2
    args = {"max_model_len": context, "speculative_config": {"method": method}}
    engine = EngineConfig({**args, "gpu_memory_utilization": 1.0}, {}, tp)
    more = least_memory(Model("model", target), engine, draft) - least_memory(
        Model("model", target), engine, None
    )
    planned = draft_of(RooflineEngine(target, GPUS[0], BF16, tp), method, "draft", shape)
    tables = 0 if method == "draft_model" else shape.embedding_parameters // tp * 2
    small_ones = 0 if method == "draft_model" else shape.small_parameters * 2
    counted = planned.weight_bytes - tables - small_ones + planned.kv_token_bytes * context
    assert abs(more - counted) < 1 << 10


def refuses(rule: Rule, found: list[Finding]) -> bool:
    return any(each.rule == rule and each.refuses for each in found)


@given(
    shapes(),
    st.dictionaries(
        st.sampled_from(
            [
                "max_model_len",
                "dtype",
                "quantization",
                "kv_cache_dtype",
                "gpu_memory_utilization",
                "speculative_config",
            ]
        ),
        json_values,
    ),
)
def test_the_check_of_weights_returns_findings_for_any_files(
    shape: ModelShape, args: dict[str, Any]
) -> None:
    model = Model("m", shape)
    found = findings(model, EngineConfig(args, {}), Device("A100", (8, 0), 40 * GIB), draft=model)
    assert all(each.message and each.remedy for each in found)


@given(shapes(), st.integers(1, 64))
def test_the_parallelism_degrees_named_in_a_remedy_are_valid(
    shape: ModelShape, degree: int
) -> None:
    model, engine = Model("m", shape), EngineConfig({}, {}, degree)
    for each in degrees(model, engine):
        assert uneven_over(model, EngineConfig({}, {}, each)) is None


@given(shapes(), sizes, lengths, st.integers(1, 200), st.integers(1, 100))
def test_more_memory_never_fits_less(
    shape: ModelShape, size: int, length: int, memory: int, more: int
) -> None:
    model, engine = Model("m", shape, size), EngineConfig({"max_model_len": length}, {})
    small = findings(model, engine, Device("small", (9, 0), memory * GIB))
    large = findings(model, engine, Device("large", (9, 0), (memory + more) * GIB))
    assert refuses("memory", small) or not refuses("memory", large)


@pytest.mark.parametrize(
    ("named", "experts", "least", "most"),
    [
        ("fp8_per_tensor", 0, 0.5, 0.6),
        ("fp8_per_tensor", 8, 0.5, 0.6),
        ("int8_per_channel_weight_only", 8, 0.5, 0.6),
        ("int8_per_channel_weight_only", 0, 1.0, 1.0),
        ("experts_int8", 8, 0.5, 0.6),
    ],
)
def test_weights_that_are_quantized_as_they_load_count_as_what_they_become(
    named: str, experts: int, least: float, most: float
) -> None:
    shape = mistral(experts)
    model = Model("m", shape, 2 * shape.parameters)
    before, after = (
        weight_bytes_of(model, EngineConfig({"quantization": name}, {})) for name in ("", named)
    )
    assert before is not None and after is not None
    assert least <= after / before <= most


@given(shapes(), sizes, lengths, lengths)
def test_a_shorter_context_never_fits_less(
    shape: ModelShape, size: int, length: int, more: int
) -> None:
    model, device = Model("m", shape, size), Device("GPU", (9, 0), 80 * GIB)
    short = findings(model, EngineConfig({"max_model_len": length}, {}), device)
    long = findings(model, EngineConfig({"max_model_len": length + more}, {}), device)
    assert not refuses("memory", short) or refuses("memory", long)


@given(shapes(), st.sampled_from([(7, 5), (8, 0), (8, 9), (9, 0)]), sizes)
def test_the_length_that_a_remedy_names_fits(
    shape: ModelShape, capability: tuple[int, int], size: int
) -> None:
    model, device = Model("m", shape, size), Device("GPU", capability, 80 * GIB)
    found = findings(model, EngineConfig({"max_model_len": 1 << 22}, {}), device)
    remedies = [e.remedy for e in found if e.rule == "memory" and e.key != "model"]
    lengths = [named[1] for remedy in remedies if (named := LENGTH.match(remedy))]
    assume(lengths)  # otherwise the weights do not fit, or all of the context does
    [length] = lengths
    shorter = findings(model, EngineConfig({"max_model_len": int(length)}, {}), device)
    assert not refuses("memory", shorter)


@given(
    st.builds(
        Stored,
        st.sampled_from(["awq", "gptq"]),
        st.just("int4"),
        st.just(""),
        st.sampled_from([-1, 8, 16, 32, 64, 128, 256]),
        st.none(),
        st.just(True),
    )
)
def test_four_bit_weights_are_fast_on_ampere_only_in_the_group_sizes_of_marlin(
    stored: Stored,
) -> None:
    assert (list(verdicts(stored, (8, 0))) == []) == (stored.group in MARLIN_GROUPS)


@given(quantizations())
def test_any_quantization_config_can_be_read(quantization: dict[str, Any]) -> None:
    assert all(each.group >= -1 for each in stored_in(quantization))


@given(lengths, lengths)
def test_an_overflow_pool_needs_the_context_of_the_pool_before_it(here: int, there: int) -> None:
    assert bool(overflow_findings(here, there, "b")) == (there < here)


def test_the_page_has_a_row_for_every_rule() -> None:
    rows = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if "|" in line]
    told = [row for row in rows if row and row != "Rule" and set(row) != {"-"}]
    assert sorted(set(told)) == sorted(get_args(Rule))
