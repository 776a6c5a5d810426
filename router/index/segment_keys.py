"""The names of prompt prefixes: one function for gateways and replicas.

A segment key is 16 bytes of keyed BLAKE2b over the previous key and the segment's tokens and media.
The namespace determines the root. So a key identifies its whole prefix: two prompts share their
first k keys if and only if they share namespace, tokens and media that far. Without the secret,
keys cannot be computed, and prompts cannot be tested against them. Only tokens that are not uint32
raise ValueError.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

KEY_BYTES = 16
TOKEN_BYTES = 4
MAX_TOKEN = 2**32 - 1


@dataclass(frozen=True)
class Namespace:
    """Everything except tokens that determines a prompt's KV cache; None and "" are two
    namespaces."""

    model: str
    revision: str | None = None
    lora: str | None = None
    cache_salt: str | None = None


@dataclass(frozen=True)
class Media:
    """A multimodal item's span in a prompt, in tokens.

    `identifier` is the engine's; it represents the content, and so the length too.
    """

    identifier: str
    offset: int
    length: int


# (identifier, offset from the start of the segment), sorted; a negative offset starts before it
SegmentMedia = tuple[tuple[str, int], ...]


def index_secret(engine_secret: str) -> bytes:
    """Return the index's 32-byte key. Raises ValueError without a secret to derive it from."""
    if not engine_secret:
        raise ValueError("the prefix index needs the fleet's engine secret, which is empty")
    return blake2b(engine_secret.encode(), digest_size=32, person=b"antefix index").digest()


def pack(token_ids: Sequence[int]) -> bytes:
    """Return tokens as uint32, little endian. Raises ValueError for a token outside that range."""
    packed = array("I")
    try:
        # fromlist is more than twice as fast as the constructor
        packed.fromlist(token_ids if isinstance(token_ids, list) else list(token_ids))
    except OverflowError:
        wrong = next(token for token in token_ids if not 0 <= token <= MAX_TOKEN)
        raise ValueError(f"token id {wrong} is not between 0 and {MAX_TOKEN}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes) -> list[int]:
    """Return the tokens that `pack` has packed."""
    tokens = array("I", packed)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()


def _text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode("utf-8", "surrogatepass")
    return b"\1" + len(encoded).to_bytes(8, "little") + encoded


class SegmentHasher:
    """Computes keys with one secret."""

    def __init__(self, secret: bytes) -> None:
        def tagged(person: bytes) -> blake2b:
            return blake2b(key=secret, digest_size=KEY_BYTES, person=person)

        # One tag for each form of input, so that no two can be confused.
        self._root = tagged(b"afx namespace")
        self._segment = tagged(b"afx segment")
        self._media_segment = tagged(b"afx media")

    def root(self, namespace: Namespace) -> bytes:
        """Return the value to which the first segment's key is chained."""
        hash_ = self._root.copy()
        fields = (namespace.model, namespace.revision, namespace.lora, namespace.cache_salt)
        hash_.update(b"".join(map(_text, fields)))
        return hash_.digest()

    def extend(
        self, previous: bytes, packed_tokens: bytes | memoryview, media: SegmentMedia = ()
    ) -> bytes:
        """Return the key of the segment after `previous`: KEY_BYTES long."""
        hash_ = (self._media_segment if media else self._segment).copy()
        hash_.update(previous)
        if media:
            hash_.update(len(packed_tokens).to_bytes(8, "little"))
        hash_.update(packed_tokens)
        for identifier, offset in media:
            hash_.update(_text(identifier) + offset.to_bytes(8, "little", signed=True))
        return hash_.digest()

    def chain(
        self, previous: bytes, packed_tokens: bytes | memoryview, segment_tokens: int
    ) -> tuple[list[bytes], bytes]:
        """Return the keys of the whole segments after `previous`, and the remaining tokens."""
        length = segment_tokens * TOKEN_BYTES
        tokens = memoryview(packed_tokens)
        ends = range(length, len(tokens) + 1, length)
        begun, keys = self._segment.copy, []
        for end in ends:
            hash_ = begun()
            hash_.update(previous)
            hash_.update(tokens[end - length : end])
            previous = hash_.digest()
            keys.append(previous)
        return keys, bytes(tokens[len(ends) * length :])

    def keys(
        self,
        namespace: Namespace,
        token_ids: Sequence[int],
        segment_tokens: int,
        media: Sequence[Media] = (),
    ) -> list[bytes]:
        """Return one key for each whole segment of a prompt, first segment first.

        Raises ValueError for a token that is not uint32 and for `segment_tokens` below 1.
        """
        if segment_tokens < 1:
            raise ValueError(f"a segment has at least one token, not {segment_tokens}")
        packed, key = memoryview(pack(token_ids)), self.root(namespace)
        if not media:
            return self.chain(key, packed, segment_tokens)[0]
        length = segment_tokens * TOKEN_BYTES
        segments = len(token_ids) // segment_tokens
        by_segment = _media_by_segment(media, segment_tokens, segments)
        keys = []
        for index in range(segments):
            tokens = packed[index * length : (index + 1) * length]
            key = self.extend(key, tokens, by_segment.get(index, ()))
            keys.append(key)
        return keys


def _media_by_segment(
    media: Sequence[Media], segment_tokens: int, segments: int
) -> dict[int, SegmentMedia]:
    found: dict[int, set[tuple[str, int]]] = {}
    for item in media:
        last = (item.offset + item.length - 1) // segment_tokens
        for index in range(item.offset // segment_tokens, min(last + 1, segments)):
            offset = item.offset - index * segment_tokens
            found.setdefault(index, set()).add((item.identifier, offset))
    return {index: tuple(sorted(items)) for index, items in found.items()}
