"""A LoRA adapter of random numbers, which changes a small model's answers.

Its files are those of peft, which vLLM reads: adapter_config.json and adapter_model.safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4
_MODULES = ("q_proj", "v_proj")


def make_adapter(
    model: Path,
    folder: Path,
    seed: int = 5,
    rank: int = RANK,
    modules: Sequence[str] = _MODULES,
) -> None:
    """Write one for the Llama-like model in `model` to `folder`, the same each time for a seed."""
    of = json.loads((model / "config.json").read_text())
    hidden, heads, wide = of["hidden_size"], of["num_attention_heads"], of["intermediate_size"]
    head = of.get("head_dim") or hidden // heads
    queries, keys = heads * head, of["num_key_value_heads"] * head
    sizes = {
        "q_proj": (hidden, queries),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (queries, hidden),
        "gate_proj": (hidden, wide),
        "up_proj": (hidden, wide),
        "down_proj": (wide, hidden),
    }
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(of["num_hidden_layers"]):
        for module in modules:
            part_of = "mlp" if wide in sizes[module] else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{part_of}.{module}"
            inputs, outputs = sizes[module]
            for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                values = random.normal(0, 0.05, shape).astype(np.float32)
                weights[f"{name}.lora_{part}.weight"] = values
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4 * rank, "target_modules": [*modules]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
