"""The prefixes that an engine is likely to get again, from the requests that it served.

It keeps the segments of the latest prompts with their answers, up to a number of tokens. A segment
is hot once two requests have used it. A prompt is worth keeping if at least half of it is hot: a
question about a known document, or the next turn of a conversation. It says nothing about what the
engine's cache still has (`CachedBlocks`). Memory is bounded, and nothing here raises except for
tokens that are not uint32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.index.segment_keys import TOKEN_BYTES, Namespace, SegmentHasher, pack

# Tokens that are kept: 4 MB, and about as much for their keys.
MOST_TOKENS = 1 << 20
# Uses after which a segment is hot.
HOT = 2


@dataclass(slots=True)
class _Segment:
    """`before` is the key of the segment before it, or the root of its namespace."""

    before: bytes
    tokens: bytes
    salt: str | None
    uses: int = 0


@dataclass(frozen=True)
class HotPrefix:
    """Whole segments from the start of a prompt: their keys, and their tokens (`pack`)."""

    keys: tuple[bytes, ...]
    tokens: bytes
    salt: str | None

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return len(self.tokens) // TOKEN_BYTES

    def first(self, segments: int) -> HotPrefix:
        """Return its first segments."""
        end = segments * len(self.tokens) // max(1, len(self.keys))
        return HotPrefix(self.keys[:segments], self.tokens[:end], self.salt)


class HotPrefixes:
    """Prefixes of text, without adapters and images. `salt`: the cache salt of the prompt."""

    def __init__(
        self,
        hasher: SegmentHasher,
        model: str,
        revision: str | None,
        segment_tokens: int,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self._hasher = hasher
        self._model = model
        self._revision = revision
        self._segment_tokens = segment_tokens
        self._most = most_tokens // segment_tokens if segment_tokens else 0
        # the oldest use first; a segment comes before the one that it is chained to
        self._segments: dict[bytes, _Segment] = {}

    def used(self, token_ids: Sequence[int], salt: str | None) -> None:
        """Count a use of a prompt with its answer."""
        token_ids = token_ids[: self._most * self._segment_tokens]
        if self._segment_tokens and len(token_ids) >= self._segment_tokens:
            self.used_prefix(self.prefix(pack(token_ids), salt))

    def prefix(self, tokens: bytes, salt: str | None) -> HotPrefix:
        """Return the whole segments of packed tokens."""
        root = self._root(salt)
        keys, _ = self._hasher.chain(root, tokens, self._segment_tokens)
        length = len(keys) * self._segment_tokens * TOKEN_BYTES
        return HotPrefix(tuple(keys), tokens[:length], salt)

    def used_prefix(self, prefix: HotPrefix, uses: int = 1) -> None:
        """Count uses of a prefix."""
        length, segments = self._segment_tokens * TOKEN_BYTES, self._segments
        before = (self._root(prefix.salt), *prefix.keys)
        for index in reversed(range(len(prefix.keys))):
            key = prefix.keys[index]
            segment = segments.pop(key, None)
            if segment is None:
                tokens = prefix.tokens[index * length : (index + 1) * length]
                segment = _Segment(before[index], tokens, prefix.salt)
            segment.uses += uses
            segments[key] = segment
        while len(segments) > self._most:
            del segments[next(iter(segments))]

    def hottest(self, most_prefixes: int, most_tokens: int) -> list[HotPrefix]:
        """Return what is worth keeping, hot prefixes first, then prompts that continue them; of
        both the last used first. Prefixes may share segments; the bounds count all of theirs."""
        chains: dict[bytes, tuple[int, int]] = {}  # of a segment: the length of its chain, hot ones
        hot_inner, inner = set(), set()
        for key, segment in reversed(self._segments.items()):
            length, hot = chains.get(segment.before, (0, 0))
            is_hot = segment.uses >= HOT
            chains[key] = (length + 1, hot + is_hot)
            inner.add(segment.before)
            if is_hot:
                hot_inner.add(segment.before)
        ends = [key for key in chains if key not in hot_inner and self._segments[key].uses >= HOT]
        ends += [
            key
            for key, (length, hot) in chains.items()
            if key not in inner and hot < length <= 2 * hot
        ]
        found: list[HotPrefix] = []
        for key in ends:
            tokens = chains[key][0] * self._segment_tokens
            if len(found) < most_prefixes and tokens <= most_tokens:
                most_tokens -= tokens
                found.append(self._ending_with(key))
        return found

    def _ending_with(self, key: bytes) -> HotPrefix:
        keys, tokens, salt = [], [], self._segments[key].salt
        while (segment := self._segments.get(key)) is not None:
            keys.append(key)
            tokens.append(segment.tokens)
            key = segment.before
        return HotPrefix(tuple(reversed(keys)), b"".join(reversed(tokens)), salt)

    def _root(self, salt: str | None) -> bytes:
        return self._hasher.root(Namespace(self._model, self._revision, None, salt))
