"""Random models with a byte's vocabulary: an interpreted sampler takes a second a step with
SmolLM2's 49,152 tokens, and 50 ms with these 288.

    target   2 layers of 64
    near     the same with a little noise: a draft model that is often right
    eagle    an EAGLE head of the target's first layer
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HIDDEN = 64
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
NOISE = 0.01


def make(folder: Path) -> None:
    """Each in a folder of its name."""
    target = _target()
    _save(target, folder / "target")
    _make_eagle(target, folder / "target", folder / "eagle")
    torch.manual_seed(2)
    with torch.no_grad():
        for weights in target.parameters():
            weights.add_(torch.randn_like(weights) * NOISE * weights.std())
    _save(target, folder / "near")


def _target() -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=288,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=HIDDEN // 2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        initializer_range=0.5,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def _save(model: LlamaForCausalLM, folder: Path) -> None:
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *sorted(ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    unknown, begin, end, padding = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        pad_token=padding,
        chat_template="{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    )


def _make_eagle(target: LlamaForCausalLM, origin: Path, folder: Path) -> None:
    torch.manual_seed(3)
    weights = {
        name.removeprefix("model."): weights.contiguous().clone()
        for name, weights in target.state_dict().items()
        if name.startswith("model.layers.0.") and "input_layernorm" not in name
    }
    weights["fc.weight"] = (0.1 * torch.randn(HIDDEN, 2 * HIDDEN)).to(torch.bfloat16)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    config = json.loads((origin / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    _tokenizer().save_pretrained(folder)
