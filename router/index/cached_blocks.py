"""The segments in one engine's prefix cache, from its KV events.

It is a tree of the engine's blocks: a block is reachable if it and all before it are cached, and a
segment is cached if its last block is reachable. The result is exact while no event is lost, in any
order of events. A block that its tokens do not describe (prompt embeddings), or that fits no
segment, is omitted with all that follow it. So it may report less than the engine has, never more.
Only with layers of other kinds than full attention (sliding windows, Mamba) a hit may be shorter.
Duplicate events of one physical block would leave a phantom at its eviction: `overfull` reports
that more are counted than the engine has. Memory grows with the cached blocks. Nothing here raises.

An engine with a host tier also has copies in the host's memory. It loads them where the cached
blocks of a prompt end, up to the first block without a copy. With a disk tier, it also reads blocks
from files, of which this knows those that the engine wrote or read itself. So each block is cached,
loaded, read or computed, and a segment has a key for each tier (`tier_key`) while it is there or
closer. Events of the tiers only name blocks. Their tokens and salts are known from the events of
the cache. They are kept for the latest evicted blocks, because a copy may be reported after the
eviction. A block that is pulled from another engine, or that another engine wrote, is in the host
tier before the cache reports it. Files may be removed without an event: those of a disk tier are a
hint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from router.index.kv_events import BlockHash, BlockRemoved, BlockStored, KvEvent, media_and_salt
from router.index.segment_keys import (
    TOKEN_BYTES,
    Namespace,
    SegmentHasher,
    SegmentMedia,
    pack,
)

logger = logging.getLogger(__name__)

# The medium of the blocks that attention reads, also in CPU builds; and those of copies in the
# host's memory and in files.
MAIN_MEDIUM = "GPU"
HOST_MEDIUM = "CPU"
DISK_MEDIUM = "STORAGE"
# Kinds of KV cache group that need, and so keep, every block of a prefix; None: unknown.
FULL_ATTENTION = {None, "full_attention", "mla_attention", "sink_full_attention"}
# How a request gets a block: it is computed, read from a file, loaded from the host's memory, or in
# the cache.
_COMPUTED, _READ, _LOADED, _CACHED = 0, 1, 2, 3
# Evicted blocks whose tokens are kept, if the size of the cache is unknown.
EVICTED = 4096


class Tier(StrEnum):
    """A tier of the KV cache below the device's memory."""

    HOST = "h"
    DISK = "d"


_REACH_OF = {Tier.DISK: _READ, Tier.HOST: _LOADED}
_SUFFIXES = {tier: tier.encode() for tier in Tier}


def tier_key(key: bytes, tier: Tier) -> bytes:
    """Return the key under which the index has a segment that is in this tier or closer to the
    device."""
    return key + _SUFFIXES[tier]


OnWritten: TypeAlias = "Callable[[bytes, bytes | None, bytes, int], None]"


@dataclass(frozen=True)
class Changes:
    """Keys now cached and keys no longer cached, each at most once.

    A key comes after those it is chained to in `set`, and before them in `cleared`.
    """

    set: list[bytes]
    cleared: list[bytes]


class _Block:
    """A block hash: known, or not known but with known blocks after it.

    A block is known while it has copies or was evicted lately. It has `count` copies in the cache,
    `hosted` ones in the host tier, and one in a file if it is `written`. Only a known block has a
    parent; its siblings are a linked list. `reach` is _COMPUTED, _READ, _LOADED or _CACHED. `key`
    and `filled` are the key of the last whole segment and the tokens after it, once they are known.
    `tokens` (packed) and `media` are the block's own, while a segment can still be built from them.
    """

    __slots__ = (
        "before",
        "child",
        "count",
        "filled",
        "hash",
        "hosted",
        "key",
        "media",
        "next",
        "parent",
        "reach",
        "tokens",
        "written",
    )

    def __init__(self, hash_: BlockHash) -> None:
        self.hash = hash_
        self.count = self.hosted = 0
        self.written = False
        self.reach = _COMPUTED
        self.key: bytes | None = None
        self.filled = 0
        self.tokens = b""
        self.media: SegmentMedia = ()
        self.parent: _Block | None = None
        self.child: _Block | None = None
        self.next: _Block | None = None
        self.before: _Block | None = None


class CachedBlocks:
    """One engine's prefix cache, from its events."""

    def __init__(
        self,
        hasher: SegmentHasher,
        model: str,
        revision: str | None,
        segment_tokens: int,
        max_copies: int | None = None,
        tiers: Iterable[Tier] = (),
        on_written: OnWritten | None = None,
    ) -> None:
        """`max_copies`: the engine's number of physical blocks in its cache; None: unknown.
        `tiers`: those of the engine. Copies elsewhere are ignored. `on_written` is called for each
        block that was written to a file, with its hash and that of the block before it. The other
        arguments are the key of the last whole segment, and the number of tokens after that."""
        self._hasher = hasher
        self._model = model
        self._revision = revision
        self._segment_tokens = segment_tokens
        self._blocks: dict[BlockHash, _Block] = {}
        # Key -> reachable blocks that complete it. A LoRA adapter loaded again under its name has
        # other block hashes for the same tokens. In insertion order: a key comes after those it
        # chains to.
        self._held: dict[bytes, int] = {}
        self._tiers = frozenset(tiers)
        # the lowest first, with the suffix of its keys
        self._levels = [
            *((_REACH_OF[tier], _SUFFIXES[tier]) for tier in _REACH_OF if tier in self._tiers),
            (_CACHED, b""),
        ]
        # Copies in the host tier of blocks that are not known yet, by group and hash. There is no
        # followed group before the first event of the cache.
        self._unknown: dict[tuple[int | None, BlockHash], int] = {}
        # without copies, the oldest first
        self._evicted: dict[BlockHash, None] = {}
        self._on_written = on_written
        # those of segments in files that other engines wrote
        self._readable: dict[bytes, None] = {}
        self._set: dict[bytes, None] = {}
        self._cleared: dict[bytes, None] = {}
        self._group: int | None = None
        self._counting = True
        self._max_copies = max_copies
        self._copies = 0
        self._logged: set[str] = set()

    def __contains__(self, key: bytes) -> bool:
        """Return whether a key is cached."""
        return key in self._held

    def keys(self) -> list[bytes]:
        """Return all cached keys, each after those it is chained to."""
        return list(self._held)

    def chunks(self, size: int) -> Iterator[list[bytes]]:
        """Yield the keys cached at the first `next`, `size` at a time, without those dropped
        meanwhile.

        The time of a chunk depends on its size, not on the size of the cache.
        """
        keys = self.keys()
        for start in range(0, len(keys), size):
            yield [key for key in keys[start : start + size] if key in self._held]

    @property
    def overfull(self) -> bool:
        """Whether more copies are counted than possible, so that some are phantoms: call
        `forget`."""
        return self._counting and self._max_copies is not None and self._copies > self._max_copies

    def take_changes(self) -> Changes:
        """Return the net effect of all changes since the last call."""
        changes = Changes(set=list(self._set), cleared=list(self._cleared))
        self._set.clear()
        self._cleared.clear()
        return changes

    def forget(self) -> None:
        """Start again after lost events, with no known blocks.

        The engine is then asked to report blocks again as it reuses them, so a stored event may not
        mean one more physical copy: from now on the first removal removes a block.
        """
        self._clear()
        self._counting = False

    def set_readable(self, segments: Sequence[bytes], gone: Sequence[bytes] = ()) -> None:
        """Set which segments can be read from files, whichever engine wrote them, each after the
        one it is chained to. They stay when the cache is dropped. `gone`: the hashes of blocks of
        this engine whose files were removed."""
        self._remove(BlockRemoved(list(gone), medium=DISK_MEDIUM))
        before, self._readable = self._readable, dict.fromkeys(segments)
        for key in segments:
            if key not in before:
                self._hold(tier_key(key, Tier.DISK))
        for key in reversed(before):
            if key not in self._readable:
                self._release(tier_key(key, Tier.DISK))

    def apply(self, events: Iterable[KvEvent]) -> None:
        """Apply a batch of events."""
        for event in events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                self._clear()

    def _store(self, event: BlockStored) -> None:
        if event.medium in (HOST_MEDIUM, DISK_MEDIUM):
            if self._group is None or event.group_idx in (None, self._group):
                self._copy(event)
            return
        if not self._concerns_prefixes(event):
            return
        size = event.block_size
        if size < 1 or self._segment_tokens % size:
            self._log_once(f"blocks of {size} tokens do not divide {self._segment_tokens} evenly")
            return
        length = size * TOKEN_BYTES
        hashes = event.block_hashes
        try:
            packed = pack(event.token_ids)
        except ValueError:
            self._log_once("blocks with tokens that are not uint32")
            return
        extra = event.extra_keys or [None] * len(hashes)
        if len(packed) != len(hashes) * length or len(extra) != len(hashes):
            self._log_once("blocks without their tokens or extra keys")
            return

        blocks = self._blocks
        parent_hash = event.parent_block_hash
        parent = None if parent_hash is None else blocks.get(parent_hash)
        for index, hash_ in enumerate(hashes):
            block = blocks.get(hash_)
            if block is not None and block.parent is not None:
                self._cache(block)
            elif (
                parts := media_and_salt(extra[index], event.lora_name, parent_hash is None)
            ) is not None:
                media, salt = parts
                if parent_hash is None:
                    parent = self._root(event.lora_name, salt)
                elif parent is None:
                    parent = blocks[parent_hash] = _Block(parent_hash)
                if block is None:
                    block = blocks[hash_] = _Block(hash_)
                block.tokens = packed[index * length : (index + 1) * length]
                block.media = media
                block.hosted = self._unknown.pop((event.group_idx, hash_), 0)
                _attach(block, parent)
                self._cache(block)
            parent, parent_hash = block, hash_

    def _cache(self, block: _Block) -> None:
        """Count one more copy of a known block in the cache."""
        if not block.count or self._counting:
            block.count += 1
            self._copies += 1
        if block.count == 1:
            self._evicted.pop(block.hash, None)
            self._settle(block)

    def _copy(self, event: BlockStored) -> None:
        """Count one more copy of each block in the host tier, or that it is in a file. A file of an
        unknown block is omitted."""
        is_host = event.medium == HOST_MEDIUM
        if (Tier.HOST if is_host else Tier.DISK) not in self._tiers:
            return
        for hash_ in event.block_hashes:
            block = self._blocks.get(hash_)
            if block is None or block.parent is None:
                if is_host:
                    copies = self._unknown.get((event.group_idx, hash_), 0)
                    self._unknown[event.group_idx, hash_] = copies + 1 if self._counting else 1
                continue
            if not is_host:
                is_new, block.written = not block.written, True
                if is_new:
                    self._tell_written(block)
            else:
                if not block.hosted or self._counting:
                    block.hosted += 1
                is_new = block.hosted == 1
            if is_new:
                self._evicted.pop(hash_, None)
                self._settle(block)

    def _tell_written(self, block: _Block) -> None:
        parent = block.parent
        assert parent is not None
        if self._on_written is None or block.key is None or not isinstance(block.hash, bytes):
            return
        assert isinstance(parent.hash, bytes)
        is_first = parent.parent is None and parent.reach == _CACHED
        before = None if is_first else parent.hash
        self._on_written(block.hash, before, block.key, block.filled)

    def _remove(self, event: BlockRemoved) -> None:
        if event.medium == HOST_MEDIUM:
            self._remove_unknown(event)
        if event.group_idx not in (None, self._group):
            return
        for hash_ in event.block_hashes:
            block = self._blocks.get(hash_)
            if block is not None and self._removes_last(block, event.medium):
                self._settle(block)
                if not (block.count or block.hosted or block.written):
                    self._evict(block)

    def _remove_unknown(self, event: BlockRemoved) -> None:
        """Count one copy less of each block in the host tier that is not known yet."""
        for hash_ in event.block_hashes:
            copies = self._unknown.pop((event.group_idx, hash_), 0)
            if copies > 1:
                self._unknown[event.group_idx, hash_] = copies - 1

    def _removes_last(self, block: _Block, medium: str | None) -> bool:
        """Count one copy of a block less. Return whether it was the last one in its place."""
        if medium in (None, MAIN_MEDIUM) and block.count:
            block.count -= 1
            self._copies -= 1
            return not block.count
        if medium == HOST_MEDIUM and block.hosted:
            block.hosted -= 1
            return not block.hosted
        if medium == DISK_MEDIUM and block.written:
            block.written = False
            return True
        return False

    def _evict(self, block: _Block) -> None:
        """Forget a block without copies, at once or when others were evicted after it."""
        if not self._tiers:
            self._drop(block)
            return
        self._evicted[block.hash] = None
        while len(self._evicted) > (self._max_copies or EVICTED):
            oldest = next(iter(self._evicted))
            del self._evicted[oldest]
            self._drop(self._blocks[oldest])

    def _drop(self, block: _Block) -> None:
        parent = _detach(block)
        if parent.parent is None and not parent.reach and parent.child is None:
            del self._blocks[parent.hash]
        if block.child is None:
            del self._blocks[block.hash]
        else:
            block.key, block.filled, block.tokens, block.media = None, 0, b"", ()

    def _clear(self) -> None:
        self._blocks.clear()
        self._unknown.clear()
        self._evicted.clear()
        self._copies = 0
        for key in reversed(self._held):
            self._note(key, self._cleared, self._set)
        self._held.clear()
        readable, self._readable = self._readable, {}
        self.set_readable(list(readable))

    def _concerns_prefixes(self, event: BlockStored) -> bool:
        """Return whether these blocks decide about prefix hits; of several groups, one is
        followed."""
        if (
            event.medium not in (None, MAIN_MEDIUM)
            or event.kv_cache_spec_kind not in FULL_ATTENTION
        ):
            return False
        if self._group is None:
            self._group = event.group_idx
        return event.group_idx in (None, self._group)

    def _root(self, lora: str | None, cache_salt: str | None) -> _Block:
        root = _Block(b"")
        root.count = 1
        root.reach = _CACHED
        root.key = self._hasher.root(Namespace(self._model, self._revision, lora, cache_salt))
        return root

    def _settle(self, block: _Block) -> None:
        """Bring a block and those after it up to date with its copies: how requests get them, and
        the keys."""
        changed: list[tuple[bytes, int, int]] = []
        pending = [block]
        while pending:
            block = pending.pop()
            before, now = block.reach, self._reach_of(block)
            if now == before:
                continue
            block.reach = now
            if not block.filled:
                assert block.key is not None
                changed.append((block.key, before, now))
            child = block.child
            while child is not None:
                pending.append(child)
                child = child.next
        for key, before, now in changed:
            for reach, suffix in self._levels:
                if before < reach <= now:
                    self._hold(key + suffix)
        for key, before, now in reversed(changed):
            for reach, suffix in reversed(self._levels):
                if now < reach <= before:
                    self._release(key + suffix)

    def _reach_of(self, block: _Block) -> int:
        parent = block.parent
        assert parent is not None
        if block.count and parent.reach == _CACHED:
            reach = _CACHED
        elif block.hosted and parent.reach >= _LOADED:
            reach = _LOADED
        elif (block.hosted or block.written) and parent.reach and Tier.DISK in self._tiers:
            reach = _READ
        else:
            return _COMPUTED
        if block.key is None:
            self._place(block)
        return _COMPUTED if block.key is None else reach

    def _hold(self, key: bytes) -> None:
        copies = self._held.get(key, 0)
        self._held[key] = copies + 1
        if not copies:
            self._note(key, self._set, self._cleared)

    def _release(self, key: bytes) -> None:
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
            self._note(key, self._cleared, self._set)

    def _place(self, block: _Block) -> None:
        """Find a block's place in its segment; leaves `key` None if it crosses the end."""
        parent = block.parent
        assert parent is not None and parent.key is not None
        filled = parent.filled + len(block.tokens) // TOKEN_BYTES
        if filled < self._segment_tokens:
            block.key, block.filled = parent.key, filled
        elif filled == self._segment_tokens:
            tokens, media = _segment(block, filled)
            block.key = self._hasher.extend(parent.key, tokens, media)
            block.tokens, block.media = b"", ()

    @staticmethod
    def _note(key: bytes, now: dict[bytes, None], opposite: dict[bytes, None]) -> None:
        if key in opposite:
            del opposite[key]
        else:
            now[key] = None

    def _log_once(self, what: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            logger.warning("omitting from the prefix index: %s", what)


def _segment(last: _Block, size: int) -> tuple[bytes, SegmentMedia]:
    """Return the tokens and media of the segment of `size` tokens that a block completes."""
    block: _Block | None = last
    tokens = []
    media: set[tuple[str, int]] = set()
    start = size
    while start:
        assert block is not None
        tokens.append(block.tokens)
        start -= len(block.tokens) // TOKEN_BYTES
        for identifier, offset in block.media:
            media.add((identifier, start + offset))
        block = block.parent
    return b"".join(reversed(tokens)), tuple(sorted(media))


def _attach(block: _Block, parent: _Block) -> None:
    block.parent = parent
    sibling = parent.child
    block.next = sibling
    if sibling is not None:
        sibling.before = block
    parent.child = block


def _detach(block: _Block) -> _Block:
    """Remove a block from its parent's children. Return the parent."""
    parent, before, after = block.parent, block.before, block.next
    assert parent is not None
    if before is None:
        parent.child = after
    else:
        before.next = after
    if after is not None:
        after.before = before
    block.parent = block.before = block.next = None
    return parent
