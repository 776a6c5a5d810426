"""How prompts' beginnings were tokenized before, so that each is tokenized once.

For each piece of a prompt (`deployments.prompt.cuts`) it has how many tokens that is, and the keys
of the segments that end in it. A piece is found by a chain of keyed hashes, which names all of the
prompt up to its end, how it is rendered and who may know of it: the namespace of the prompt's
keys, with its `cache_salt`. So neither what is kept nor how long a request takes tells a tenant of
another's prompts. No text is kept, and of a piece's tokens the last few, which fill no segment.

Exact: what it says of a prompt is what tokenizing all of it would. Bounded in bytes; what was not
looked up for longest is forgotten first. Safe to use from many threads.
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
from router.segment_keys import KEY_BYTES, Namespace, SegmentHasher, pack

# A prompt of 100,000 tokens in one piece takes 14 kB.
MOST_BYTES = 32 * 2**20
NAME_BYTES = 16
# Of a piece, beside its keys and last tokens: names, lengths, places in the table.
PIECE_BYTES = 400


class ReadPrompt(NamedTuple):
    """How many tokens a prompt has, and its segment keys."""

    tokens: int
    keys: Sequence[bytes]


class KnownPiece(NamedTuple):
    """Its tokens, the keys of the segments that end in it, and the tokens since the last of those,
    of pieces before it as well."""

    tokens: int
    keys: bytes
    rest: bytes

    @property
    def size_bytes(self) -> int:
        return PIECE_BYTES + len(self.keys) + len(self.rest)


class KnownPrompts:
    """Of one process. `size_bytes`: what it holds, roughly."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._secret = os.urandom(32)
        self._lock = threading.Lock()
        # name of a prefix -> its last piece, least lately used first
        self._pieces: OrderedDict[bytes, KnownPiece] = OrderedDict()
        self.size_bytes = 0

    def read(
        self,
        prompt: PromptPieces | list[int],
        renderer: str,
        hasher: SegmentHasher,
        namespace: Namespace,
        segment_tokens: int,
    ) -> ReadPrompt:
        """A prompt that this `renderer` rendered; no keys where `segment_tokens` is 0, nor for
        tokens that are no uint32. Raises what `PromptPieces` raises."""
        if isinstance(prompt, list):
            keys: list[bytes] = []
            with contextlib.suppress(ValueError):  # no such token id: the engine's to refuse
                keys = hasher.keys(namespace, prompt, segment_tokens)
            return ReadPrompt(len(prompt), keys)
        key = hasher.root(namespace)
        name = self._root(renderer, key, segment_tokens)
        tokens, keys, rest = 0, [], b""
        for text in prompt.texts:
            name = blake2b(text.encode(), digest_size=NAME_BYTES, key=name).digest()
            if (piece := self._known(name)) is None:
                ids = prompt.encode(text)
                new: list[bytes] = []
                left = b""
                if segment_tokens:
                    new, left = hasher.chain(key, rest + pack(ids), segment_tokens)
                piece = KnownPiece(len(ids), b"".join(new), left)
                # a shorter one is a prompt's last, and as quickly tokenized as found
                if len(text) >= MIN_PIECE_CHARS:
                    self._keep(name, piece)
            keys += [piece.keys[at : at + KEY_BYTES] for at in range(0, len(piece.keys), KEY_BYTES)]
            key = keys[-1] if keys else key
            tokens += piece.tokens
            rest = piece.rest
        prompt.check_length(tokens)
        return ReadPrompt(tokens, keys)

    def _root(self, renderer: str, key: bytes, segment_tokens: int) -> bytes:
        """What the name of a prompt's first piece is chained to; `key` is its namespace's."""
        whose = b"".join((key, segment_tokens.to_bytes(8, "little"), renderer.encode()))
        return blake2b(whose, digest_size=NAME_BYTES, key=self._secret).digest()

    def _known(self, name: bytes) -> KnownPiece | None:
        with self._lock:
            piece = self._pieces.get(name)
            if piece is not None:
                self._pieces.move_to_end(name)
            return piece

    def _keep(self, name: bytes, piece: KnownPiece) -> None:
        with self._lock:
            if name in self._pieces:  # another thread read it meanwhile
                return
            self._pieces[name] = piece
            self.size_bytes += piece.size_bytes
            while self.size_bytes > self._most_bytes:
                self.size_bytes -= self._pieces.popitem(last=False)[1].size_bytes
