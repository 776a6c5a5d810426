"""The numbers of a model that determine its bytes and its work, from its config.json.

The keys are those of Hugging Face's configuration classes. A decoder that this cannot describe
(state-space layers, encoders, per-layer widths) is rejected with a `Problem`, never guessed.
Biases, norms of single heads and position tables are omitted: below 0.1% of any model here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from common.errors import Problem

# model types with an up and a down projection, but no gate
PLAIN_MLPS = (
    "phi",
    "gpt_neox",
    "starcoder2",
    "nemotron",
    "falcon",
    "opt",
    "persimmon",
    "gpt2",
    "gptj",
)
# with other rope types, max_position_embeddings is the length after scaling
# model types whose config.json has other names
OLDER_NAMES = ("gpt2", "gptj")
LENGTHENING_ROPES = ("linear", "dynamic")
ATTENTION_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Linear:
    """A kind of projection: `count` matrices of inputs x outputs in the whole model.

    `shard` is the dimension that tensor parallelism splits: "outputs" (column parallel), "inputs"
    (row parallel) or "none".
    """

    name: str
    inputs: int
    outputs: int
    count: int
    expert: bool = False
    shard: str = "outputs"

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True)
class ModelShape:
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied_embeddings: bool
    max_context: int | None
    dtype: str
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_expert_intermediate: int = 0
    dense_layers: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    sliding_window: int | None = None
    full_attention_layers: int | None = None
    quantization: Mapping[str, Any] | None = None
    gated_mlp: bool = True
    # One layer over three hidden states of another model. It uses that model's token table, and a
    # smaller vocabulary: vLLM 0.32's model_executor/models/llama_eagle3.py.
    is_eagle3_head: bool = False

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def table_parameters(self) -> int:
        """Return the parameters of a token table that is only looked up: no output head, and not
        shared with another model."""
        return 0 if self.tied_embeddings or self.is_eagle3_head else self.vocabulary * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Return the parameters of the token table, and of the output head if it is a separate
        matrix."""
        return self.vocabulary * self.hidden + self.table_parameters

    @property
    def small_parameters(self) -> int:
        """Return the parameters of norms and router gates, in 16 bit under every scheme."""
        gates = self.expert_layers * self.hidden * self.experts
        return (2 * self.layers + 1) * self.hidden + gates

    @property
    def parameters(self) -> int:
        linears = sum(linear.parameters for linear in self.linears())
        return linears + self.embedding_parameters + self.small_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Return the parameters that each token is multiplied with, including the output head.

        The token table is looked up, not multiplied with.
        """
        linears = sum(
            linear.parameters * self.experts_per_token // self.experts
            if linear.expert
            else linear.parameters
            for linear in self.linears()
        )
        return linears + self.vocabulary * self.hidden + self.small_parameters

    def linears(self) -> tuple[Linear, ...]:
        """Return what a quantization scheme quantizes: not embeddings, output head or router
        gates."""
        return self._linears

    @cached_property
    def _linears(self) -> tuple[Linear, ...]:
        attention = self._latent_attention() if self.is_mla else self._attention()
        mlps = self._mlp("mlp", self.intermediate, self.layers - self.expert_layers)
        shared = self._mlp("mlp.shared", self.shared_expert_intermediate, self.expert_layers)
        each = self._mlp(
            "mlp.experts", self.expert_intermediate, self.expert_layers * self.experts, True
        )
        return tuple(linear for linear in attention + mlps + shared + each if linear.parameters)

    def _attention(self) -> tuple[Linear, ...]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        # the layer of an EAGLE-3 head reads the token next to the states, of which there are three
        width = self.hidden * (2 if self.is_eagle3_head else 1)
        states = Linear("fc", 3 * self.hidden, self.hidden, 1, shard="none")
        return (
            *((states,) if self.is_eagle3_head else ()),
            Linear("q_proj", width, queries, self.layers),
            Linear("k_proj", width, keys, self.layers),
            Linear("v_proj", width, keys, self.layers),
            Linear("o_proj", queries, self.hidden, self.layers, shard="inputs"),
        )

    def _latent_attention(self) -> tuple[Linear, ...]:
        """Return the projections of multi-head latent attention: DeepSeek-V2, arXiv 2405.04434,
        section 2.1."""
        latent, layers = self.kv_lora_rank, self.layers
        query = self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        read_out = self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        queries = (
            (
                Linear("q_a_proj", self.hidden, self.q_lora_rank, layers, shard="none"),
                Linear("q_b_proj", self.q_lora_rank, query, layers),
            )
            if self.q_lora_rank
            else (Linear("q_proj", self.hidden, query, layers),)
        )
        down = latent + self.qk_rope_head_dim
        return (
            *queries,
            Linear("kv_a_proj_with_mqa", self.hidden, down, layers, shard="none"),
            Linear("kv_b_proj", latent, read_out, layers),
            Linear("o_proj", self.heads * self.v_head_dim, self.hidden, layers, shard="inputs"),
        )

    def _mlp(self, name: str, width: int, count: int, expert: bool = False) -> tuple[Linear, ...]:
        gate = (Linear(f"{name}.gate_proj", self.hidden, width, count, expert),)
        return (
            *(gate if self.gated_mlp else ()),
            Linear(f"{name}.up_proj", self.hidden, width, count, expert),
            Linear(f"{name}.down_proj", width, self.hidden, count, expert, "inputs"),
        )


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape in a config.json; a multimodal model's is that of its `text_config`.

    Raises Problem if a key is missing or the model is of an unsupported kind.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping) and "hidden_size" not in config:
        config = {**config, **text, "architectures": config.get("architectures")}
    kind = str(config.get("model_type", ""))
    if kind in OLDER_NAMES:
        config = {**config, **_renamed(config)}
    names = config.get("architectures") or [kind or "unknown"]
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    layers = _number(config, "num_hidden_layers")
    window, full = _attention_layers(config, layers)
    drafted_from = _first(config, "draft_vocab_size")
    experts = _first(config, "num_experts", "n_routed_experts", "num_local_experts")
    expert_width = _first(config, "moe_intermediate_size", "intermediate_size") if experts else 0
    return ModelShape(
        architecture=str(names[0]),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_first(config, "num_key_value_heads") or heads,
        head_dim=_first(config, "head_dim") or hidden // heads,
        intermediate=_number(config, "intermediate_size"),
        vocabulary=drafted_from or _number(config, "vocab_size"),
        # Hugging Face's default
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        max_context=_max_context(config, kind),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        experts=experts,
        experts_per_token=_number(config, "num_experts_per_tok") if experts else 0,
        expert_intermediate=expert_width,
        shared_expert_intermediate=_shared_width(config, expert_width) if experts else 0,
        dense_layers=_dense_layers(config, layers) if experts else 0,
        kv_lora_rank=_first(config, "kv_lora_rank"),
        q_lora_rank=_first(config, "q_lora_rank"),
        qk_nope_head_dim=_first(config, "qk_nope_head_dim"),
        qk_rope_head_dim=_first(config, "qk_rope_head_dim"),
        v_head_dim=_first(config, "v_head_dim"),
        sliding_window=window,
        full_attention_layers=full,
        quantization=config.get("quantization_config"),
        gated_mlp=kind not in PLAIN_MLPS,
        is_eagle3_head=drafted_from > 0,
    )


def _renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what GPT-2 and GPT-J call n_embd, n_head, n_layer, n_inner and n_positions, by the
    names of later models."""
    hidden = _number(config, "n_embd")
    return {
        "hidden_size": hidden,
        "num_attention_heads": _number(config, "n_head"),
        "num_hidden_layers": _number(config, "n_layer"),
        "intermediate_size": _first(config, "n_inner") or 4 * hidden,
        "max_position_embeddings": _first(config, "n_positions"),
    }


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise Problem(
            f"the model's config.json has {key}: {value!r}, where a positive number is needed",
            "use a decoder-only model in Hugging Face's format",
        )
    return value


def _first(config: Mapping[str, Any], *keys: str) -> int:
    return next((config[key] for key in keys if isinstance(config.get(key), int)), 0)


def _attention_layers(config: Mapping[str, Any], layers: int) -> tuple[int | None, int | None]:
    """Return the window of sliding layers, and the number of others; (None, None) if none
    slides."""
    kinds = config.get("layer_types") or []
    if strange := sorted({str(kind) for kind in kinds} - set(ATTENTION_KINDS)):
        raise Problem(
            f"the model has layers of the kind {strange[0]!r}, whose cache size is unknown",
            "its memory cannot be planned; vLLM logs the size of its KV cache when it starts",
        )
    window = config.get("sliding_window")
    if not isinstance(window, int) or not config.get("use_sliding_window", True):
        return None, None
    pattern = config.get("sliding_window_pattern")
    if kinds:
        full = list(kinds).count("full_attention")
    elif isinstance(pattern, int) and pattern > 0:
        full = layers // pattern
    else:
        full = 0
    return (window, full) if full < layers else (None, None)


def _max_context(config: Mapping[str, Any], kind: str) -> int | None:
    longest = _first(config, "max_position_embeddings")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    # Gemma 3 gives its length after scaling, whatever its rope
    if rope.get("rope_type", rope.get("type")) in LENGTHENING_ROPES and "gemma3" not in kind:
        longest = int(longest * (rope.get("factor") or 1))
    return longest or None


def _shared_width(config: Mapping[str, Any], expert_width: int) -> int:
    width = _first(config, "shared_expert_intermediate_size")
    return width or _first(config, "n_shared_experts") * expert_width


def _dense_layers(config: Mapping[str, Any], layers: int) -> int:
    if first := _first(config, "first_k_dense_replace"):
        return first
    every = _first(config, "decoder_sparse_step") or 1
    kept = config.get("mlp_only_layers") or []
    sparse = sum((at + 1) % every == 0 and at not in kept for at in range(layers))
    return layers - sparse
