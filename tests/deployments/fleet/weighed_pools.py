"""Pools whose models are made up, and only as large as it takes to be weighed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
GB = 1_000_000_000


class Pool(NamedTuple):
    """A pool and its model: what differs from a Llama 7B on whatever there is."""

    args: Mapping[str, Any] = {}
    gpu: str | None = None
    config: Mapping[str, Any] = {}
    quantization: Mapping[str, Any] | None = None
    size: int = 1 * GB
    env: Mapping[str, str] = {}
    draft: Mapping[str, Any] | None = None


class Case(NamedTuple):
    wrong: Pool
    said: str
    right: Pool


def quantized(method: str, group: int = 128, **more: Any) -> dict[str, Any]:
    zeros = {"zero_point": True} if method == "awq" else {"sym": True, "desc_act": False}
    return {"quant_method": method, "bits": 4, "group_size": group, **zeros, **more}


def compressed(bits: int, kind: str, activations: int | None, group: int = 0) -> dict[str, Any]:
    inputs = {"num_bits": activations, "type": kind, "dynamic": True} if activations else None
    weights = {"num_bits": bits, "type": kind, "strategy": "group" if group else "channel"}
    group_0 = {
        "targets": ["Linear"],
        "weights": {**weights, "group_size": group or None, "symmetric": True},
        "input_activations": inputs,
    }
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group_0},
        "ignore": ["lm_head"],
    }


INT8 = compressed(8, "int", 8)
FP8 = compressed(8, "float", 8)
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
SMALL = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9}
EXPERTS = {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 1408,
    "num_key_value_heads": 8,
}
SPECULATES = {"method": "draft_model", "num_speculative_tokens": 4}
HEAD = {"method": "eagle3", "num_speculative_tokens": 4}


def model_in(folder: Path, config: Mapping[str, Any], size: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    if size:
        # of that size, and empty
        with (folder / "model.safetensors").open("wb") as file:
            file.truncate(size)
    return folder


def fleet_file(tmp_path: Path, pool: Pool) -> Path:
    quantization = {"quantization_config": pool.quantization} if pool.quantization else {}
    model = model_in(tmp_path / "model", {**pool.config, **quantization}, pool.size)
    args = dict(pool.args)
    if pool.draft is not None:
        draft = model_in(tmp_path / "draft", pool.draft, GB)
        args["speculative_config"] = {**args["speculative_config"], "model": str(draft)}
    resources = {"accelerator_type": pool.gpu} if pool.gpu else {}
    written = {
        "model": str(model),
        "resources": resources,
        "env": dict(pool.env),
        "engine_args": args,
    }
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump({"name": "small", "pools": {"engine": written}}))
    return file
