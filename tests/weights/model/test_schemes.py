"""Schemes, and the group sizes that fit a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Problem
from weights.model.schemes import GROUP_SIZES, SCHEMES, fitting_group, scheme_called

SMOLLM2 = {"model.layers.0.self_attn.o_proj": 576, "model.layers.0.mlp.down_proj": 1536}

layers = st.dictionaries(
    st.sampled_from(["a.q_proj", "a.o_proj", "b.gate_proj", "b.down_proj"]),
    st.integers(1, 400).map(lambda n: 16 * n),
    min_size=1,
)


def test_the_largest_group_that_divides_every_layer_is_chosen() -> None:
    assert fitting_group(SMOLLM2, None, 1) == 64
    assert fitting_group({"layer.down_proj": 14336, "layer.q_proj": 4096}, None, 1) == 128


def test_a_group_never_crosses_the_border_between_two_gpus() -> None:
    assert fitting_group({"layer.down_proj": 1536, "layer.q_proj": 576}, None, 8) == 64
    assert fitting_group({"layer.down_proj": 1536, "layer.q_proj": 576}, None, 16) == 32


def test_a_layer_split_along_its_outputs_keeps_all_of_its_inputs() -> None:
    assert fitting_group({"layer.q_proj": 128}, None, 8) == 128


def test_the_error_for_a_group_size_names_the_layer_and_valid_sizes() -> None:
    with pytest.raises(Problem) as error:
        fitting_group(SMOLLM2, 128, 1)
    assert error.value.message == (
        "a group size of 128 does not divide the 576 inputs of model.layers.0.self_attn.o_proj"
    )
    assert error.value.remedy == "use 64, 32, 16"


def test_the_error_states_the_inputs_of_a_layer_on_each_gpu() -> None:
    with pytest.raises(Problem, match=r"the 72 inputs of \S+o_proj on each of 8 GPUs"):
        fitting_group(SMOLLM2, 64, 8)


def test_a_layer_that_no_group_fits_is_an_error_with_the_schemes_that_need_none() -> None:
    with pytest.raises(Problem) as error:
        fitting_group({"layer.q_proj": 100}, None, 1)
    assert "100 inputs of layer.q_proj" in error.value.message
    assert "w8a8" in error.value.remedy
    assert "awq" not in error.value.remedy


def test_a_degree_that_does_not_split_a_layer_evenly_is_an_error() -> None:
    with pytest.raises(Problem, match="parallelism of 5 does not divide the 576 inputs"):
        fitting_group(SMOLLM2, None, 5)


@given(layers, st.sampled_from([1, 2, 4, 8]))
def test_the_chosen_group_size_fits_and_no_larger_one_does(
    inputs: dict[str, int], tensor_parallel: int
) -> None:
    try:
        chosen = fitting_group(inputs, None, tensor_parallel)
    except Problem:
        return
    assert fitting_group(inputs, chosen, tensor_parallel) == chosen
    for larger in (size for size in GROUP_SIZES if size > chosen):
        with pytest.raises(Problem):
            fitting_group(inputs, larger, tensor_parallel)


@given(layers, st.sampled_from([2, 4, 8]))
def test_more_gpus_never_allow_a_larger_group(inputs: dict[str, int], degree: int) -> None:
    try:
        cut = fitting_group(inputs, None, degree)
    except Problem:
        return
    assert cut <= fitting_group(inputs, None, 1)


def test_the_error_for_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(Problem, match="unknown scheme 'q4_k'; use one of: awq, gptq"):
        scheme_called("q4_k")


def test_only_schemes_that_use_activations_need_a_text() -> None:
    needing = {name for name, scheme in SCHEMES.items() if scheme.needs_calibration}
    assert needing == {"awq", "gptq", "w8a8-smoothquant"}
