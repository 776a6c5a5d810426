"""Models without weights: the embedded one's configuration, with other tokenizers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram
from tokenizers.trainers import BpeTrainer, UnigramTrainer

from deployments.models.model import embedded_model
from tests.deployments.prompt import templates

# Enough for a vocabulary with words, parts of words and several scripts.
CORPUS = [
    "All work and no play makes Jack a dull boy. The capital of France is Paris.",
    "Once upon a time, in 2031, there was a naïve café in Zürich; 東京 and नमस्ते, 21 °C.",
    "system user assistant tool weather city think content name arguments role message",
    '{"type": "function", "function": {"name": "now", "parameters": {}}}',
] * 20


def embedded() -> Path:
    return embedded_model(lambda fraction, step: None)


def small_tokenizer() -> Tokenizer:
    """A tokenizer of the embedded one's kind, of 600 tokens."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def small(folder: Path) -> Path:
    """Loaded in no time, for whatever does not depend on the tokenizer."""
    _copy(folder)
    small_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def with_bos(folder: Path) -> Path:
    """Its tokenizer adds a token before a text and one after it."""
    small(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    first, last = "<|endoftext|>", "<|im_end|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(each, tokenizer.token_to_id(each)) for each in (first, last)],
    )
    # as models come that were trained on short texts; vLLM cuts to its own length
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def with_unigram(folder: Path) -> Path:
    """A tokenizer of the SentencePiece kind, with special tokens that swallow blanks."""
    _copy(folder)
    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    trainer = UnigramTrainer(
        vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(
        [
            AddedToken("<|im_start|>", rstrip=True, special=True),
            AddedToken("<|im_end|>", lstrip=True, special=True),
        ]
    )
    tokenizer.add_tokens([AddedToken("Paris", single_word=True, normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return _set(folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token=None)


def with_named_templates(folder: Path) -> Path:
    """Chats with tools have a separate template."""
    small(folder)
    (folder / "chat_template.jinja").unlink()
    named = {"default": templates.MARKED, "tool_use": templates.TOOLS}
    return _set(
        folder, chat_template=[{"name": name, "template": text} for name, text in named.items()]
    )


def without_template(folder: Path) -> Path:
    """A base model."""
    small(folder)
    (folder / "chat_template.jinja").unlink()
    return folder


def _copy(folder: Path) -> None:
    shutil.copytree(
        embedded(), folder, ignore=shutil.ignore_patterns("*.safetensors", "SHA256SUMS")
    )


def _set(folder: Path, **settings: Any) -> Path:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder
