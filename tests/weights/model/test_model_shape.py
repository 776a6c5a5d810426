"""What config.json says, against what its publishers say of the model."""

from typing import Any

import pytest

from common.errors import Problem
from weights.model.known_models import known_config, known_models
from weights.model.model_shape import shape_of

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}

# as huggingface.co counts the safetensors files; DeepSeek-V3 as its model card does, without the
# layer that predicts further tokens
PARAMETERS = {
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.1-405B-Instruct": 405_853_388_800,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46_702_792_704,
    "deepseek-ai/DeepSeek-V3": 671_000_000_000,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 32_763_876_352,
}
# their model cards, in billions: the token table is counted there and not here
ACTIVE = {
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 12.9,
    "deepseek-ai/DeepSeek-V3": 37,
    "Qwen/Qwen3-30B-A3B": 3.3,
}


@pytest.mark.parametrize(("model", "published"), PARAMETERS.items())
def test_parameters_are_those_that_were_published(model: str, published: int) -> None:
    shape = shape_of(known_config(model) or {})
    assert shape.parameters == pytest.approx(published, rel=1e-4)


@pytest.mark.parametrize(("model", "published"), ACTIVE.items())
def test_a_mixture_multiplies_a_token_with_few_of_its_parameters(
    model: str, published: float
) -> None:
    shape = shape_of(known_config(model) or {})
    table = shape.vocabulary * shape.hidden
    assert (shape.active_parameters + table) / 1e9 == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("model", "parameters", "active"),
    [("openai/gpt-oss-20b", 20.91, 3.61), ("openai/gpt-oss-120b", 116.83, 5.13)],
)
def test_gpt_oss_has_the_parameters_of_its_card(
    model: str, parameters: float, active: float
) -> None:
    """In billions: arXiv 2508.10925, table 1."""
    shape = shape_of(known_config(model) or {})
    assert shape.parameters / 1e9 == pytest.approx(parameters, rel=1e-3)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=1e-3)
    assert (shape.sliding_window, shape.full_attention_layers) == (128, shape.layers // 2)


@pytest.mark.parametrize("model", known_models())
def test_every_model_that_ships_can_be_described(model: str) -> None:
    shape = shape_of(known_config(model) or {})
    assert shape.parameters > (4e8 if shape.is_eagle3_head else 1e9)
    assert shape.max_context is not None


def test_an_eagle3_head_has_the_bytes_that_its_card_says() -> None:
    """850 MB in 16 bit. Its token table is the model's."""
    shape = shape_of(known_config("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B") or {})
    assert shape.is_eagle3_head
    assert 2 * shape.parameters / 1e6 == pytest.approx(850, abs=0.7)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_missing_key_is_named(key: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(Problem, match=key):
        shape_of(config)


def test_a_multimodal_model_has_the_shape_of_its_text_model() -> None:
    nested = {"architectures": ["SeesForConditionalGeneration"], "text_config": LLAMA}
    shape = shape_of(nested)
    assert (shape.layers, shape.architecture) == (6, "SeesForConditionalGeneration")


def test_a_missing_number_of_key_heads_means_one_for_each_head() -> None:
    config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    assert shape_of(config).kv_heads == 4


def test_half_of_the_layers_may_have_a_window() -> None:
    kinds = ["sliding_attention", "full_attention"] * 3
    shape = shape_of({**LLAMA, "sliding_window": 128, "layer_types": kinds})
    assert (shape.sliding_window, shape.full_attention_layers) == (128, 3)


def test_a_pattern_makes_every_sixth_layer_a_full_one() -> None:
    shape = shape_of({**LLAMA, "sliding_window": 128, "sliding_window_pattern": 6})
    assert (shape.sliding_window, shape.full_attention_layers) == (128, 1)


@pytest.mark.parametrize(
    "unused",
    [
        {"sliding_window": None},
        {"sliding_window": 128, "use_sliding_window": False},
        {"sliding_window": 128, "layer_types": ["full_attention"] * 6},
    ],
)
def test_a_window_that_no_layer_uses_is_ignored(unused: dict[str, Any]) -> None:
    shape = shape_of({**LLAMA, **unused})
    assert (shape.sliding_window, shape.full_attention_layers) == (None, None)


def test_layers_without_a_cache_for_each_token_are_refused() -> None:
    with pytest.raises(Problem, match="linear_attention"):
        shape_of({**LLAMA, "layer_types": ["linear_attention"] * 6})


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"type": "dynamic", "factor": 2.0}, 1024),
        ({"rope_type": "llama3", "factor": 8.0}, 512),
        ({"rope_type": "yarn", "factor": 8.0}, 512),
    ],
)
def test_only_some_rope_scalings_extend_the_context_length_of_the_model(
    rope: dict[str, Any], longest: int
) -> None:
    assert shape_of({**LLAMA, "rope_scaling": rope}).max_context == longest


def test_layers_without_experts_are_counted_as_dense() -> None:
    mixture = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    assert shape_of({**LLAMA, **mixture, "decoder_sparse_step": 2}).dense_layers == 3
    assert shape_of({**LLAMA, **mixture, "mlp_only_layers": [0]}).dense_layers == 1
    assert shape_of({**LLAMA, **mixture, "first_k_dense_replace": 2}).dense_layers == 2


def test_an_mlp_without_a_gate_has_two_projections() -> None:
    names = [linear.name for linear in shape_of({**LLAMA, "model_type": "phi"}).linears()]
    assert [name for name in names if "mlp" in name] == ["mlp.up_proj", "mlp.down_proj"]


# of huggingface.co/openai-community/gpt2 and huggingface.co/EleutherAI/gpt-j-6b
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
GPT_J = {
    "architectures": ["GPTJForCausalLM"],
    "model_type": "gptj",
    "n_embd": 4096,
    "n_head": 16,
    "n_inner": None,
    "n_layer": 28,
    "n_positions": 2048,
    "tie_word_embeddings": False,
    "vocab_size": 50400,
}


@pytest.mark.parametrize(
    ("config", "parameters", "context"),
    [(GPT2, 124_439_808, 1024), (GPT_J, 6_050_882_784, 2048)],
    ids=["GPT-2", "GPT-J"],
)
def test_the_older_names_of_gpt_2_and_gpt_j_are_read(
    config: dict[str, Any], parameters: int, context: int
) -> None:
    """Parameters as published; the shape omits biases and GPT-2's table of positions."""
    shape = shape_of(config)
    assert shape.parameters == pytest.approx(parameters, rel=0.01)
    assert shape.max_context == context
    assert shape.kv_heads == shape.heads


def test_an_mlp_of_gpt_2_has_the_width_that_its_config_names() -> None:
    assert shape_of(GPT2).intermediate == 4 * 768
    assert shape_of({**GPT2, "n_inner": 1536}).intermediate == 1536


def test_a_missing_older_name_is_named() -> None:
    with pytest.raises(Problem, match="n_embd"):
        shape_of({name: value for name, value in GPT2.items() if name != "n_embd"})
