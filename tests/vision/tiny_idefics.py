"""An Idefics3 with random weights and a tokenizer of single letters, made here without a download.

Unlike most vision models, it needs no torchvision. Its answers mean nothing:

    python -m tests.vision.tiny_idefics FOLDER
"""

from __future__ import annotations

import string
import sys
from itertools import product
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

END, START, UNKNOWN = "<|end|>", "<|start|>", "<|unknown|>"
# what Idefics3 has around and in place of an image
IMAGE, AROUND, GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"
PATCH, TILE, SCALE = 14, 56, 2
TILE_TOKENS = (TILE // PATCH // SCALE) ** 2
MAX_MODEL_LEN = 512
TEMPLATE = """\
{%- for message in messages %}{{ '<|start|>' + message.role + ': ' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{%- if part.type == 'image' %}{{ '<image>' }}{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant: ' }}{% endif %}"""


def make(folder: Path) -> None:
    """Images are read as up to two by two tiles, and a small copy."""
    tokenizer = _tokenizer()
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
    )
    Idefics3Processor(
        images, tokenizer, image_seq_len=TILE_TOKENS, chat_template=TEMPLATE
    ).save_pretrained(folder)
    end, image = (tokenizer.convert_tokens_to_ids(token) for token in (END, IMAGE))
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": TILE,
        "patch_size": PATCH,
    }
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    config = Idefics3Config(
        vision_config=vision,
        text_config=text,
        image_token_id=image,
        scale_factor=SCALE,
        eos_token_id=end,
        pad_token_id=end,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    Idefics3ForConditionalGeneration(config).save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    letters = {letter: number for number, letter in enumerate([UNKNOWN, *string.printable])}
    tokenizer = Tokenizer(BPE(letters, [], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, unk_token=UNKNOWN
    )
    tiles = [f"<row_{row}_col_{column}>" for row, column in product(range(1, 7), repeat=2)]
    made.add_special_tokens({"additional_special_tokens": [START, IMAGE, AROUND, GLOBAL, *tiles]})
    return made


if __name__ == "__main__":
    make(Path(sys.argv[1]))
