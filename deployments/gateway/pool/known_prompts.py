"""Caches how the beginnings of prompts were tokenized, so each is tokenized once.

An entry is a piece of a prompt (`deployments.prompt.cuts`): its number of tokens, and the keys of
the segments that end in it. Its name is a chain of keyed hashes. They cover the prompt up to the
piece's end, the renderer, and the keys' namespace with its `cache_salt`. So neither entries nor
response times reveal one tenant's prompts to another. An entry has no text, and of its tokens only
the last few, which do not fill a segment.

Results are exact: they equal those of tokenizing the whole prompt. Memory is limited; the least
recently used entries are evicted first. Thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from deployments.prompt import PromptPieces
from deployments.prompt.cuts import MIN_PIECE_CHARS
from router.index.segment_keys import KEY_BYTES, Namespace, SegmentHasher, pack

# A prompt of 100,000 tokens in one piece takes 14 kB.
MOST_BYTES = 32 * 2**20
NAME_BYTES = 16
# The size of an entry without its keys and last tokens: name, lengths, its place in the table.
PIECE_BYTES = 400


class ReadPrompt(NamedTuple):
    """A prompt's number of tokens, and its segment keys."""

    tokens: int
    keys: Sequence[bytes]


class KnownPiece(NamedTuple):
    """A tokenized piece of a prompt.

    `tokens`: their number. `keys`: of the segments that end in it. `rest`: the tokens after the
    last of those, which may begin in earlier pieces.
    """

    tokens: int
    keys: bytes
    rest: bytes

    @property
    def size_bytes(self) -> int:
        return PIECE_BYTES + len(self.keys) + len(self.rest)


class KnownPrompts:
    """The cache of one process. `size_bytes`: its approximate size."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._secret = os.urandom(32)
        self._lock = threading.Lock()
        # name of a prefix -> its last piece, least recently used first
        self._pieces: OrderedDict[bytes, KnownPiece] = OrderedDict()
        self.size_bytes = 0

    def read(
        self,
        prompt: PromptPieces | list[int],
        renderer: str,
        hasher: SegmentHasher,
        namespace: Namespace,
        segment_tokens: int,
        counts_only: bool = False,
    ) -> ReadPrompt:
        """Return the tokens and keys of a prompt from this `renderer`.

        There are no keys if `counts_only`, if `segment_tokens` is 0, or if a token is not a uint32.
        Raises the errors of `PromptPieces`.
        """
        if isinstance(prompt, list):
            keys: list[bytes] = []
            with contextlib.suppress(ValueError):  # the engine rejects invalid token ids
                if not counts_only:
                    keys = hasher.keys(namespace, prompt, segment_tokens)
            return ReadPrompt(len(prompt), keys)
        key = hasher.root(namespace)
        name = self._root(renderer, key, segment_tokens)
        tokens, parts, rest = 0, [], b""
        for text in prompt.texts:
            name = blake2b(text.encode(), digest_size=NAME_BYTES, key=name).digest()
            if (piece := self._known(name)) is None:
                ids = prompt.encode(text)
                new: list[bytes] = []
                left = b""
                if segment_tokens:
                    new, left = hasher.chain(key, rest + pack(ids), segment_tokens)
                piece = KnownPiece(len(ids), b"".join(new), left)
                # a shorter one ends its prompt, and tokenizing it is as fast as a lookup
                if len(text) >= MIN_PIECE_CHARS:
                    self._keep(name, piece)
            parts.append(piece.keys)
            key = piece.keys[-KEY_BYTES:] or key
            tokens += piece.tokens
            rest = piece.rest
        prompt.check_length(tokens)
        joined = b"" if counts_only else b"".join(parts)
        keys = [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]
        return ReadPrompt(tokens, keys)

    def _root(self, renderer: str, key: bytes, segment_tokens: int) -> bytes:
        """Return the start of a prompt's chain of names; `key` is the namespace's."""
        scope = b"".join((key, segment_tokens.to_bytes(8, "little"), renderer.encode()))
        return blake2b(scope, digest_size=NAME_BYTES, key=self._secret).digest()

    def _known(self, name: bytes) -> KnownPiece | None:
        with self._lock:
            piece = self._pieces.get(name)
            if piece is not None:
                self._pieces.move_to_end(name)
            return piece

    def _keep(self, name: bytes, piece: KnownPiece) -> None:
        with self._lock:
            if name in self._pieces:  # another thread added it meanwhile
                return
            self._pieces[name] = piece
            self.size_bytes += piece.size_bytes
            while self.size_bytes > self._most_bytes:
                self.size_bytes -= self._pieces.popitem(last=False)[1].size_bytes
