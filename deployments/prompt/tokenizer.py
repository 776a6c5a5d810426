"""Text to token ids, truncated as vLLM does.

Source: vllm/renderers/params.py of vLLM 0.32, and the Rust tokenizer's truncation, which leaves
room for the special tokens it adds. A prompt that the engine rejects as too long raises Unknowable,
and so does one whose check would take long. The tokenizer never changes and is safe to use from
many threads. It releases the interpreter lock while it works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from tokenizers import Encoding, Tokenizer

from deployments.prompt.cuts import pieces, safe_to_cut_before
from deployments.prompt.facts import RendererFacts
from deployments.prompt.unknowable import Unknowable

# A prompt that fills the context has four or five characters per token, rarely six.
_MOST_CHARS_PER_TOKEN = 8
# Number of characters that never take long.
_FEW_CHARS = 65536


@dataclass(frozen=True)
class Cut:
    """Number of prompt tokens that a request keeps (None: all), and the side that is cut (None: the
    tokenizer's default)."""

    length: int | None = None
    side: Literal["left", "right"] | None = None


@dataclass(frozen=True, repr=False)
class PromptPieces:
    """A prompt's text in pieces, whose tokens in sequence are those of the prompt."""

    texts: Sequence[str]
    _tokenizer: PromptTokenizer

    def encode(self, text: str) -> list[int]:
        """Return token ids of one of the pieces."""
        return self._tokenizer.encode_piece(text)

    def check_length(self, tokens: int) -> None:
        """Raise Unknowable for more tokens than a prompt may have."""
        self._tokenizer.check_tokens(tokens)


class PromptTokenizer:
    """A tokenizer. Raises ValueError if the facts have none. `elsewhere`: see `PromptTokens`."""

    def __init__(
        self, facts: RendererFacts, elsewhere: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._elsewhere = elsewhere
        try:
            self._tokenizer = Tokenizer.from_str(facts.tokenizer)
        except Exception as error:  # the Rust tokenizer raises no narrower error
            raise ValueError("the engine's tokenizer cannot be rebuilt here") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = facts.split_special_tokens
        templates = [of.text for of in (facts.template, facts.tool_template) if of is not None]
        mentioned = "\n".join([*templates, *facts.special_tokens.values()])
        self._cut_before: tuple[str, ...] = ()
        if not facts.split_special_tokens:
            self._cut_before = safe_to_cut_before(self._tokenizer, mentioned)
        self._special_count = self._tokenizer.num_special_tokens_to_add(False)
        self._own_side = facts.truncation_side
        self._max_tokens = facts.max_model_len
        self._vllms_max_chars = facts.max_model_len * facts.max_chars_per_token
        self._our_max_chars = max(facts.max_model_len * _MOST_CHARS_PER_TOKEN, _FEW_CHARS)

    def check_length(self, chars: int) -> None:
        """Raise Unknowable for more characters than a prompt is likely to have."""
        if chars > self._our_max_chars:
            raise Unknowable("the prompt is too long")

    def encode(self, texts: Sequence[str], add_special_tokens: bool, cut: Cut) -> list[list[int]]:
        """Return token ids of each text."""
        self.check_length(len(texts) + sum(map(len, texts)))
        if cut.length is not None and cut.side is None:
            return self._encode_cut(texts, add_special_tokens, cut.length)
        if cut.length is not None:
            kept = slice(self._vllms_max_chars)
            if cut.side == "left":
                kept = slice(-self._vllms_max_chars, None)
            texts = [text[kept] for text in texts]
        encodings = self._encodings(texts, add_special_tokens)
        return [self.fit(encoding.ids, cut) for encoding in encodings]

    def takes_pieces(self, add_special_tokens: bool, cut: Cut) -> bool:
        """Return whether a prompt's tokens depend only on its text."""
        return cut.length is None and not (add_special_tokens and self._special_count)

    def in_pieces(self, texts: Sequence[str]) -> list[PromptPieces]:
        """Return each text in pieces that are not encoded yet."""
        self.check_length(len(texts) + sum(map(len, texts)))
        return [PromptPieces(pieces(text, self._cut_before), self) for text in texts]

    def encode_piece(self, text: str) -> list[int]:
        """Return token ids of a piece of a text."""
        (encoding,) = self._encodings([text], False)
        return encoding.ids

    def fit(self, ids: list[int], cut: Cut) -> list[int]:
        """Return truncated token ids."""
        if cut.length is not None and cut.length < len(ids):
            side = cut.side or self._own_side
            ids = ids[len(ids) - cut.length :] if side == "left" else ids[: cut.length]
        self.check_tokens(len(ids))
        return ids

    def check_tokens(self, tokens: int) -> None:
        """Raise Unknowable for more tokens than a prompt may have."""
        if tokens > self._max_tokens:
            raise Unknowable("the prompt is too long")

    def _encode_cut(
        self, texts: Sequence[str], add_special_tokens: bool, length: int
    ) -> list[list[int]]:
        """Truncate in the tokenizer itself, which keeps the special tokens."""
        room = length - (self._special_count if add_special_tokens else 0)
        if room <= 0:
            raise Unknowable("no room for text")
        encodings = self._encodings(texts, False)
        for encoding in encodings:
            encoding.truncate(room, direction=self._own_side)
        if add_special_tokens:
            encodings = [self._tokenizer.post_process(encoding) for encoding in encodings]
        return [self.fit(encoding.ids, Cut()) for encoding in encodings]

    def _encodings(self, texts: Sequence[str], add_special_tokens: bool) -> list[Encoding]:
        with self._elsewhere():
            return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
