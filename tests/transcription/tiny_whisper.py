"""A Whisper with random weights and a tokenizer of single bytes, made here without a download.

Its transcripts mean nothing: python -m tests.transcription.tiny_whisper FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

END, START = "<|endoftext|>", "<|startoftranscript|>"
MAX_MODEL_LEN = 64
SECONDS = 30


def make(folder: Path) -> None:
    specials = [START, *(f"<|{language}|>" for language in LANGUAGES)]
    specials += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    specials += ["<|nospeech|>", "<|notimestamps|>"]
    times = [f"<|{step * 0.02:.2f}|>" for step in range(SECONDS * 50 + 1)]
    letters = sorted(ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, END])}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], pad_token=END)
    tokenizer.add_special_tokens({"additional_special_tokens": specials})
    tokenizer.add_tokens(times)
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    end = tokenizer.convert_tokens_to_ids(END)
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=80,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=SECONDS * 50,
        max_target_positions=MAX_MODEL_LEN,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids(START),
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(0)
    WhisperForConditionalGeneration(config).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
