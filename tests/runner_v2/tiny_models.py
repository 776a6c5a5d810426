"""Random models with a byte's vocabulary: an interpreted sampler takes a second a step with
SmolLM2's 49,152 tokens, and 50 ms with these 288.

    target   2 layers of 64
    near     the same with a little noise: a draft model that is often right
    eagle    an EAGLE head of the target's first layer
    eagle3   an EAGLE-3 head: a layer that reads three places of the target, and drafts half of the
             vocabulary
    adapter  a LoRA adapter of the target
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.harness.fleets.made_adapter import make_adapter

HIDDEN, VOCABULARY = 64, 288
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
NOISE = 0.01
PROMPTS = ([10 + i % 90 for i in range(40)], [50, 60, 70, 80])


def make(folder: Path) -> None:
    """Each in a folder of its name."""
    target = _target()
    _save(target, folder / "target")
    _make_eagle(target, folder / "target", folder / "eagle")
    _make_eagle3(folder / "target", folder / "eagle3")
    make_adapter(folder / "target", folder / "adapter")
    torch.manual_seed(2)
    with torch.no_grad():
        for weights in target.parameters():
            weights.add_(torch.randn_like(weights) * NOISE * weights.std())
    _save(target, folder / "near")


def adapted_tokens(folder: Path, count: int) -> list[list[int]]:
    """Greedy answers to PROMPTS without vLLM, of the target with the adapter in its weights."""
    model = LlamaForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    weights = load_file(folder / "adapter" / "adapter_model.safetensors")
    answers = [[*ids] for ids in PROMPTS]
    with torch.no_grad():
        for name, down in weights.items():
            if not name.endswith(".lora_A.weight"):
                continue
            up = weights[name.replace("lora_A", "lora_B")]
            module = model.get_submodule(
                name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            )
            module.weight.add_(up @ down, alpha=config["lora_alpha"] / config["r"])
        for ids in answers:
            for _ in range(count):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return [ids[-count:] for ids in answers]


def _target() -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
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
    _save_head(weights, {}, origin, folder)


def _make_eagle3(origin: Path, folder: Path) -> None:
    torch.manual_seed(4)
    drafted = VOCABULARY // 2
    sizes = {
        "fc": (HIDDEN, 3 * HIDDEN),
        # the token's embedding, and what the places of the target gave
        **{f"midlayer.self_attn.{part}_proj": (HIDDEN, 2 * HIDDEN) for part in "qkv"},
        "midlayer.self_attn.o_proj": (HIDDEN, HIDDEN),
        "midlayer.mlp.gate_proj": (2 * HIDDEN, HIDDEN),
        "midlayer.mlp.up_proj": (2 * HIDDEN, HIDDEN),
        "midlayer.mlp.down_proj": (HIDDEN, 2 * HIDDEN),
        "lm_head": (drafted, HIDDEN),
    }
    weights = {f"{name}.weight": 0.1 * torch.randn(size) for name, size in sizes.items()}
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"midlayer.{norm}.weight"] = torch.ones(HIDDEN)
    weights["norm.weight"] = torch.ones(HIDDEN)
    weights = {name: of.to(torch.bfloat16) for name, of in weights.items()}
    # each second token; the table has how far a token is from its place
    weights["d2t"] = torch.arange(drafted)
    places = {"draft_vocab_size": drafted, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    _save_head(weights, places, origin, folder)


def _save_head(
    weights: dict[str, torch.Tensor], more: Mapping[str, Any], origin: Path, folder: Path
) -> None:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    config = json.loads((origin / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1, **more}))
    _tokenizer().save_pretrained(folder)
