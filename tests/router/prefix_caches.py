"""A model of an engine's prefix cache and of what happens to it, for tests."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from router.index.cached_blocks import Tier, tier_key
from router.index.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from router.index.segment_keys import Media, Namespace, SegmentHasher

HASHER = SegmentHasher(b"secret")
MODEL, REVISION = "main", "r1"


@dataclass(frozen=True)
class Prompt:
    tokens: tuple[int, ...]
    lora: str | None = None
    cache_salt: str | None = None
    media: tuple[Media, ...] = ()

    def keys(self, segment_tokens: int) -> list[bytes]:
        """As a gateway makes them."""
        namespace = Namespace(MODEL, REVISION, self.lora, self.cache_salt)
        return HASHER.keys(namespace, self.tokens, segment_tokens, self.media)


class Engine:
    """A prefix cache as vLLM keeps it: hashed blocks, each in copies, and an event for each.

    `hosted` are the blocks of its host tier, and `written` those of its disk tier. Copies on their
    way to the host are read from blocks that are still cached when they start, and reported when
    they are complete.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.copies: Counter[bytes] = Counter()
        self.hosted: dict[bytes, None] = {}
        self.written: dict[bytes, None] = {}
        self._on_their_way: dict[bytes, None] = {}
        self.reports_reuse = False
        self._known: dict[Prompt, list[tuple[bytes, tuple[Any, ...] | None]]] = {}

    def blocks(self, prompt: Prompt) -> list[tuple[bytes, tuple[Any, ...] | None]]:
        """Hash and extra keys of each whole block."""
        if prompt in self._known:
            return self._known[prompt]
        found = self._known[prompt] = []
        parent = b""
        for start in range(0, len(prompt.tokens) - self.block_size + 1, self.block_size):
            end = start + self.block_size
            marks = [
                (m.identifier, m.offset - start)
                for m in prompt.media
                if m.offset < end and m.offset + m.length > start
            ]
            salt = prompt.cache_salt if start == 0 else None
            content = repr((parent, prompt.tokens[start:end], prompt.lora, marks, salt))
            extra = (prompt.lora, *marks, salt)
            parent = hashlib.sha256(content.encode()).digest()
            found.append((parent, tuple(e for e in extra if e) or None))
        return found

    def reusable(self, prompt: Prompt) -> int:
        """How many first blocks of a prompt a request finds."""
        reused = 0
        for hash_, _ in self.blocks(prompt):
            if not self.copies[hash_]:
                break
            reused += 1
        return reused

    def stored(self, prompt: Prompt, first: int, last: int) -> BlockStored:
        blocks = self.blocks(prompt)
        return BlockStored(
            block_hashes=[hash_ for hash_, _ in blocks[first:last]],
            parent_block_hash=blocks[first - 1][0] if first else None,
            token_ids=list(prompt.tokens[first * self.block_size : last * self.block_size]),
            block_size=self.block_size,
            medium="GPU",
            lora_name=prompt.lora,
            extra_keys=[extra for _, extra in blocks[first:last]],
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )

    def request(self, prompt: Prompt, chunk: int = 1000) -> list[KvEvent]:
        """Prefill what is not cached, `chunk` blocks a step."""
        whole = len(self.blocks(prompt))
        reused = self.reusable(prompt)
        events: list[KvEvent] = []
        if reused and self.reports_reuse:
            events.append(self.stored(prompt, 0, reused))
        for first in range(reused, whole, chunk):
            last = min(first + chunk, whole)
            events.append(self.stored(prompt, first, last))
            self.copies.update(hash_ for hash_, _ in self.blocks(prompt)[first:last])
        return events

    def evict(self, index: int) -> list[KvEvent]:
        copies = list(self.copies.elements())
        if not copies:
            return []
        hash_ = copies[index % len(copies)]
        self.copies[hash_] -= 1
        return [BlockRemoved(block_hashes=[hash_], medium="GPU", group_idx=0)]

    def offload(self, index: int) -> list[KvEvent]:
        """Complete the copies that were started before, and start another."""
        self.hosted.update(self._on_their_way)
        events: list[KvEvent] = [_copied(hash_, "CPU") for hash_ in self._on_their_way]
        cached = [hash_ for hash_ in +self.copies if hash_ not in self.hosted]
        self._on_their_way = {cached[index % len(cached)]: None} if cached else {}
        return events

    def pull(self, prompt: Prompt, most: int) -> list[KvEvent]:
        """Get up to `most` blocks of a prompt from another engine into the host tier, and then into
        the cache."""
        first = self.found(prompt, Tier.HOST)
        pulled = [hash_ for hash_, _ in self.blocks(prompt)[first : first + most]]
        self.hosted.update(dict.fromkeys(pulled))
        return [*(_copied(hash_, "CPU") for hash_ in pulled), *self.request(prompt)]

    def evict_hosted(self, index: int) -> list[KvEvent]:
        if not self.hosted:
            return []
        hash_ = list(self.hosted)[index % len(self.hosted)]
        del self.hosted[hash_]
        return [BlockRemoved(block_hashes=[hash_], medium="CPU", group_idx=0)]

    def write(self, index: int) -> list[KvEvent]:
        """Write a block of the host tier to a file, which may be there already."""
        if not self.hosted:
            return []
        hash_ = list(self.hosted)[index % len(self.hosted)]
        self.written[hash_] = None
        return [_copied(hash_, "STORAGE")]

    def remove_file(self, index: int) -> list[KvEvent]:
        if not self.written:
            return []
        hash_ = list(self.written)[index % len(self.written)]
        del self.written[hash_]
        return [BlockRemoved(block_hashes=[hash_], medium="STORAGE", group_idx=0)]

    def found(self, prompt: Prompt, tier: Tier) -> int:
        """How many first blocks of a prompt a request finds, or gets from this tier or a closer
        one."""
        blocks = self.blocks(prompt)
        found = self.reusable(prompt)
        held = self.hosted.keys() | (self.written.keys() if tier == Tier.DISK else ())
        while found < len(blocks) and blocks[found][0] in held:
            found += 1
        return found

    def reset(self) -> list[KvEvent]:
        self.copies.clear()
        self.hosted.clear()
        self.written.clear()
        self._on_their_way.clear()
        return [AllBlocksCleared()]


def _copied(hash_: bytes, medium: str) -> BlockStored:
    """As vLLM's OffloadingConnector reports it: only a name."""
    return BlockStored([hash_], None, [], 0, medium=medium, group_idx=0)


@dataclass(frozen=True)
class Scene:
    """Prompts that meet in one engine, and what happens to it."""

    block_size: int
    segment_tokens: int
    prompts: list[Prompt]
    steps: list[tuple[str, int, int]]
    tiers: tuple[Tier, ...] = ()

    def play(self, engine: Engine, step: tuple[str, int, int]) -> list[KvEvent]:
        what, which, chunk = step
        if what == "request":
            return engine.request(self.prompts[which % len(self.prompts)], chunk)
        if what == "pull":
            return engine.pull(self.prompts[which % len(self.prompts)], chunk)
        if what == "offload":
            return engine.offload(which)
        if what == "evict hosted":
            return engine.evict_hosted(which)
        if what == "write":
            return engine.write(which)
        if what == "remove file":
            return engine.remove_file(which)
        return engine.evict(which) if what == "evict" else engine.reset()

    def expected(self, engine: Engine) -> set[bytes]:
        """The keys that gateways make of the prefixes which the engine can reuse."""
        found: set[bytes] = set()
        for prompt in self.prompts:
            keys, blocks = prompt.keys(self.segment_tokens), self.segment_tokens // self.block_size
            found.update(keys[: engine.reusable(prompt) // blocks])
            for tier in self.tiers:
                there = keys[: engine.found(prompt, tier) // blocks]
                found.update(tier_key(key, tier) for key in there)
        return found

    def key_before(self) -> dict[bytes, bytes | None]:
        before: dict[bytes, bytes | None] = {}
        for prompt in self.prompts:
            keys = prompt.keys(self.segment_tokens)
            before.update(zip(keys, [None, *keys], strict=False))
            for tier in self.tiers:
                there = [tier_key(key, tier) for key in keys]
                before.update(zip(there, [None, *there], strict=False))
        return before


@st.composite
def media(draw: st.DrawFn) -> tuple[Media, ...]:
    items, offset = [], 0
    for _ in range(draw(st.integers(0, 2))):
        offset += draw(st.integers(0, 5))
        # An identifier stands for its content, which always fills as many tokens.
        length = draw(st.integers(1, 9))
        items.append(Media(f"{length} tokens", offset, length))
        offset += length
    return tuple(items)


maybe_names = st.sampled_from([None, "a", "b"])
token_runs = st.lists(st.integers(0, 1), max_size=24).map(tuple)
prompts = st.builds(Prompt, token_runs, maybe_names, maybe_names, media())
steps = st.tuples(
    st.sampled_from(["request"] * 6 + ["evict"] * 8 + ["reset"]),
    st.integers(0, 50),
    st.integers(1, 9),
)
host_steps, disk_steps = (
    st.tuples(st.sampled_from(names), st.integers(0, 50), st.integers(1, 9))
    for names in (["offload", "evict hosted", "pull"], ["write", "remove file"])
)
STEPS_OF_TIERS = {
    (): steps,
    (Tier.HOST,): steps | host_steps,
    (Tier.HOST, Tier.DISK): steps | host_steps | disk_steps,
}


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    tiers = draw(st.sampled_from(list(STEPS_OF_TIERS)))
    block_size = draw(st.integers(1, 4))
    first = draw(prompts)
    # Mostly branches of one prompt: they share blocks, and part inside segments.
    cut = st.integers(0, len(first.tokens))
    branches = st.builds(
        lambda at, more: replace(first, tokens=first.tokens[:at] + more), cut, token_runs
    )
    return Scene(
        block_size,
        block_size * draw(st.integers(1, 4)),
        [first, *draw(st.lists(branches | prompts, max_size=3))],
        draw(st.lists(STEPS_OF_TIERS[tiers], max_size=25)),
        tiers,
    )
