"""A LoRA adapter of random numbers, which changes a small model's answers.

Its files are those of peft, which vLLM reads: adapter_config.json and adapter_model.safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4
_MODULES = ("q_proj", "v_proj")


def make_adapter(model: Path, folder: Path, seed: int = 5) -> None:
    """Write one for the Llama-like model in `model` to `folder`, the same each time for a seed."""
    of = json.loads((model / "config.json").read_text())
    hidden, heads = of["hidden_size"], of["num_attention_heads"]
    head = of.get("head_dim") or hidden // heads
    outputs = {"q_proj": heads * head, "v_proj": of["num_key_value_heads"] * head}
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(of["num_hidden_layers"]):
        for module in _MODULES:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("A", (RANK, hidden)), ("B", (outputs[module], RANK))):
                values = random.normal(0, 0.05, shape).astype(np.float32)
                weights[f"{name}.lora_{part}.weight"] = values
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": [*_MODULES]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
