"""A Llama whose next token is never a near thing: it walks on a graph that its prompt states.

A token is an edge: its id encodes a source and a target. The model says the edge of the context
that begins where the last one ends. A prompt has one edge for each source, so that one answer is
right, and likelier than any other by many nats. Rounding of 4 bits, of bfloat16 and of sums in
another order decides nothing. What is wrong in a KV cache, or is lost between two workers, does.

    hidden 0-31, 32-63     source and target of the token
    64                     1
    65-96, 97-128          the edge that was found, by attention
    129-160, 161-192       the same, by the MLP, for the output head
    193-255                random, which no other dimension reads, and quantizers must weigh

Each of three layers looks up a third of the targets. Key-value head 0 finds sources, head 1 finds
targets, and each half of the MLP writes one of them: two workers need each other's sums. A row has
one weight in each group of 32, apart from the random part: 4 bits store it exactly.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployments.models.model import embedded_model

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, MLP = 3, 256, 4, 2, 64, 512
SHARING = HEADS // KV_HEADS
NODES, FIRST = 32, 1024
TARGET, ONE, FOUND, OUT, RANDOM = 32, 64, 65, 129, 193
# Of a head's dimensions those that the positions of a prompt turn by less than 0.01.
STILL = [*range(16, 32), *range(48, 64)]
ROPE_THETA = 1e10
# Of the output head, and of queries and keys: a found edge has all of the attention.
SHARPNESS, MATCH = 4.0, 6.0
# Later layers add to larger states.
BROUGHT, WRITTEN = (0.35, 0.6, 1.0), (0.2, 0.4, 1.0)
NOISE = 0.03


def edge(source: int, target: int) -> int:
    """Its token."""
    return FIRST + NODES * source + target


def walk(successors: Sequence[int], begin: int, steps: int) -> list[int]:
    """The tokens that follow the edge `begin`, where each node has its successor."""
    tokens = [begin]
    for _ in range(steps):
        node = (tokens[-1] - FIRST) % NODES
        tokens.append(edge(node, successors[node]))
    return tokens[1:]


def graph(number: int) -> list[int]:
    """The successor of each node; all graphs agree on the first 24 nodes."""
    found = random.Random(7).sample(range(NODES), NODES)
    last = found[24:]
    return [*found[:24], *(last[(i + number) % len(last)] for i in range(len(last)))]


def save(folder: Path, vocabulary: int = 49152) -> None:
    """The model, in bfloat16, with the embedded one's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        _embed(model.model.embed_tokens.weight)
        model.lm_head.weight.zero_()
        for source in range(NODES):
            for target in range(NODES):
                row = model.lm_head.weight[edge(source, target)]
                row[OUT + source] = row[OUT + NODES + target] = SHARPNESS
        for number, layer in enumerate(model.model.layers):
            _attend(layer.self_attn, number)
            _write(layer.mlp, number)
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded_model(lambda fraction, what: None) / name, folder)


def _embed(table: Any) -> None:
    """Every token is an edge, so that quantizers may see any text."""
    import torch

    tokens = torch.arange(len(table))
    table.normal_(0, 0.3)
    table[:, :RANDOM] = 0
    table[:, ONE] = 1
    table[tokens, tokens // NODES % NODES] = 1
    table[tokens, TARGET + tokens % NODES] = 1


def _attend(attention: Any, layer: int) -> None:
    """Queries are the targets of this layer, keys the sources, values both."""
    query, key, value, output = (
        getattr(attention, name).weight.normal_(0, NOISE)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    )
    query.zero_()
    output[:RANDOM] = 0
    for head in range(KV_HEADS):
        key[[head * HEAD + at for at in STILL]] = 0
        value[head * HEAD : head * HEAD + NODES] = 0
    for head in range(HEADS):
        output[:, head * HEAD : head * HEAD + NODES] = 0
    for node in range(NODES):
        for head in range(KV_HEADS):
            key[head * HEAD + STILL[node], node] = MATCH
            value[head * HEAD + node, head * TARGET + node] = 1
        for head in range(HEADS):
            if node % LAYERS == layer:
                query[head * HEAD + STILL[node], TARGET + node] = MATCH
            found = FOUND + NODES * (head // SHARING) + node
            output[found, head * HEAD + node] = BROUGHT[layer] / SHARING


def _write(mlp: Any, layer: int) -> None:
    gate, up, down = (
        getattr(mlp, name).weight.normal_(0, NOISE)
        for name in ("gate_proj", "up_proj", "down_proj")
    )
    down[:RANDOM] = 0
    for part in range(2):
        for node in range(NODES):
            row, of_part = part * MLP // 2 + node, NODES * part + node
            gate[row] = up[row] = 0
            down[:, row] = 0
            gate[row, ONE], up[row, FOUND + of_part] = 1.5, 0.3
            down[OUT + of_part, row] = WRITTEN[layer]
