"""A model whose layers two of vLLM's workers can share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from deployments.models.model import embedded_model


def split_model(folder: Path, positions: int = 8192) -> None:
    """A small Llama with random weights: the embedded model's 9 heads do not divide by 2. It takes
    this number of tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    embedded = embedded_model(lambda fraction, step: None)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded / name, folder)
    vocabulary = json.loads((embedded / "config.json").read_bytes())["vocab_size"]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        # wide enough apart that the order of additions does not change which token is the best
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
