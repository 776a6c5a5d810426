"""What an engine holds, by its events: exactly the gateway's keys, never one too many."""

import logging
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.cached_blocks import CachedBlocks, Tier, tier_key
from router.index.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, decode
from router.index.segment_keys import SegmentHasher, SegmentMedia
from tests.router.prefix_caches import HASHER, MODEL, REVISION, Engine, Prompt, Scene, scenes


def cached_blocks(segment_tokens: int, tiers: Iterable[Tier] = ()) -> CachedBlocks:
    return CachedBlocks(HASHER, MODEL, REVISION, segment_tokens, tiers=tiers)


def followed(scene: Scene) -> CachedBlocks:
    return cached_blocks(scene.segment_tokens, scene.tiers)


def on_the_wire(events: list[KvEvent]) -> list[KvEvent]:
    return decode(msgspec.msgpack.encode([0.0, events, 0]))


@given(scenes())
def test_the_cached_keys_are_exactly_those_that_the_engine_can_reuse(scene: Scene) -> None:
    engine, cached = Engine(scene.block_size), followed(scene)
    for step in scene.steps:
        cached.apply(on_the_wire(scene.play(engine, step)))
        assert sorted(cached.keys()) == sorted(scene.expected(engine))


@given(scenes(), st.lists(st.booleans(), min_size=25, max_size=25))
def test_key_changes_add_up_and_keep_every_prefix_whole(scene: Scene, takes: list[bool]) -> None:
    engine, cached = Engine(scene.block_size), followed(scene)
    before = scene.key_before()
    mirror: set[bytes] = set()

    def is_whole() -> bool:
        return all(before[key] is None or before[key] in mirror for key in mirror)

    for step, take in zip(scene.steps, takes, strict=False):
        cached.apply(scene.play(engine, step))
        if not take:
            continue
        changes = cached.take_changes()
        for key in changes.set:
            assert key not in mirror
            mirror.add(key)
            assert is_whole()
        for key in changes.cleared:
            mirror.remove(key)
            assert is_whole()
        assert mirror == set(cached.keys())


@given(scenes(), st.integers(0, 25))
def test_after_lost_events_the_keys_are_a_subset_of_the_engines_and_are_relearned(
    scene: Scene, gap: int
) -> None:
    engine, cached = Engine(scene.block_size), followed(scene)
    for step in scene.steps[:gap]:
        scene.play(engine, step)
    cached.forget()
    engine.reports_reuse = True
    for step in scene.steps[gap:]:
        cached.apply(scene.play(engine, step))
        assert set(cached.keys()) <= scene.expected(engine)
    for prompt in scene.prompts:
        cached.apply(engine.request(prompt))
    # a copy in the host tier is reported only once
    keys = set(cached.keys())
    assert keys <= scene.expected(engine)
    assert keys >= {key for key in scene.expected(engine) if len(key) == len(PROMPT.keys(4)[0])}


@given(scenes())
def test_memory_is_bounded_by_the_number_of_engine_blocks(scene: Scene) -> None:
    engine, cached = Engine(scene.block_size), followed(scene)
    for step in scene.steps:
        cached.apply(scene.play(engine, step))
        known = len(+engine.copies) + len(engine.hosted) + len(engine.written)
        assert len(cached._blocks) <= 2 * (known + len(cached._evicted))


PROMPT = Prompt(tuple(range(12)))  # three segments of two blocks of two tokens


@pytest.fixture
def engine() -> Engine:
    return Engine(block_size=2)


@pytest.fixture
def cached() -> CachedBlocks:
    return cached_blocks(segment_tokens=4)


def removed(engine: Engine, block: int) -> BlockRemoved:
    hash_ = engine.blocks(PROMPT)[block][0]
    return BlockRemoved(block_hashes=[hash_], medium="GPU", group_idx=0)


def altered(event: BlockStored, **fields: Any) -> BlockStored:
    return msgspec.structs.replace(event, **fields)


def test_an_evicted_middle_block_hides_what_follows_until_it_is_stored_again(
    engine: Engine, cached: CachedBlocks
) -> None:
    one, two, three = PROMPT.keys(4)
    cached.apply(engine.request(PROMPT))
    assert cached.take_changes().set == [one, two, three]
    cached.apply([removed(engine, 2)])
    assert cached.take_changes().cleared == [three, two]
    cached.apply([engine.stored(PROMPT, 2, 3)])
    assert cached.take_changes().set == [two, three]


def test_two_adjacent_missing_blocks_may_be_stored_again_in_any_order(
    engine: Engine, cached: CachedBlocks
) -> None:
    cached.apply([*engine.request(PROMPT), removed(engine, 2), removed(engine, 3)])
    cached.apply([engine.stored(PROMPT, 3, 4)])
    assert cached.keys() == PROMPT.keys(4)[:1]
    cached.apply([engine.stored(PROMPT, 2, 3)])
    assert cached.keys() == PROMPT.keys(4)


def test_prompts_that_diverge_inside_a_segment_share_the_segments_before_it(
    engine: Engine, cached: CachedBlocks
) -> None:
    branch = Prompt((*PROMPT.tokens[:6], 98, 99))
    cached.apply([*engine.request(PROMPT), *engine.request(branch)])
    assert set(cached.keys()) == {*PROMPT.keys(4), *branch.keys(4)}
    assert len(cached.keys()) == 4


def test_a_block_is_held_until_its_last_copy_is_removed(
    engine: Engine, cached: CachedBlocks
) -> None:
    cached.apply([*engine.request(PROMPT), engine.stored(PROMPT, 5, 6)])
    cached.apply([removed(engine, 5)])
    assert cached.keys() == PROMPT.keys(4)
    cached.apply([removed(engine, 5)])
    assert cached.keys() == PROMPT.keys(4)[:2]


def test_after_lost_events_the_first_removal_removes_a_block(
    engine: Engine, cached: CachedBlocks
) -> None:
    cached.forget()
    cached.apply([*engine.request(PROMPT), engine.stored(PROMPT, 0, 6), removed(engine, 5)])
    assert cached.keys() == PROMPT.keys(4)[:2]


def test_events_that_store_a_block_too_often_are_detected(engine: Engine) -> None:
    cached = CachedBlocks(HASHER, MODEL, REVISION, 4, max_copies=7)
    cached.apply([*engine.request(PROMPT), engine.stored(PROMPT, 5, 6)])
    assert not cached.overfull
    cached.apply([engine.stored(PROMPT, 0, 1)])
    assert cached.overfull
    cached.forget()
    assert not cached.overfull and cached.keys() == []
    cached.apply([engine.stored(PROMPT, 0, 6)] * 2)
    cached.apply([removed(engine, block) for block in range(6)])
    assert not cached.overfull and cached.keys() == []


@given(scenes())
def test_up_to_as_many_copies_as_engine_blocks_are_accepted(scene: Scene) -> None:
    engine, copies = Engine(scene.block_size), 0
    events: list[list[KvEvent]] = []
    for step in scene.steps:
        events.append(scene.play(engine, step))
        copies = max(copies, engine.copies.total())
    cached = CachedBlocks(HASHER, MODEL, REVISION, scene.segment_tokens, max_copies=copies)
    for batch in events:
        cached.apply(batch)
        assert not cached.overfull


def test_a_key_set_and_cleared_between_two_reads_is_not_a_change(
    engine: Engine, cached: CachedBlocks
) -> None:
    cached.apply([*engine.request(PROMPT), *engine.reset()])
    changes = cached.take_changes()
    assert (changes.set, changes.cleared) == ([], [])


def test_a_key_cleared_and_set_between_two_reads_is_not_a_change(
    engine: Engine, cached: CachedBlocks
) -> None:
    cached.apply(engine.request(PROMPT))
    cached.take_changes()
    cached.forget()
    cached.apply([engine.stored(PROMPT, 0, 6)])
    changes = cached.take_changes()
    assert (changes.set, changes.cleared) == ([], [])


def test_a_reset_clears_the_last_segment_first(engine: Engine, cached: CachedBlocks) -> None:
    cached.apply(engine.request(PROMPT))
    cached.take_changes()
    cached.apply(engine.reset())
    assert cached.take_changes().cleared == PROMPT.keys(4)[::-1]
    assert cached.keys() == []


def test_blocks_after_an_unreported_block_are_not_held(
    engine: Engine, cached: CachedBlocks
) -> None:
    cached.apply([engine.stored(PROMPT, 2, 6)])
    assert cached.keys() == []
    cached.apply([engine.stored(PROMPT, 0, 2)])
    assert cached.keys() == PROMPT.keys(4)


def test_prompt_embeddings_and_the_blocks_after_them_are_left_out(
    engine: Engine, cached: CachedBlocks
) -> None:
    event = engine.stored(PROMPT, 0, 6)
    embeddings = altered(event, extra_keys=[None, None, None, (b"digest",), None, None])
    cached.apply([embeddings])
    assert cached.keys() == PROMPT.keys(4)[:1]
    cached.apply([removed(engine, block) for block in range(6)])
    assert cached.keys() == [] and not cached._blocks


def test_a_lora_adapter_loaded_anew_under_its_name_counts_with_the_old_one(
    engine: Engine, cached: CachedBlocks
) -> None:
    prompt = Prompt(PROMPT.tokens, lora="adapter")
    old = engine.stored(prompt, 0, 2)
    new = altered(old, block_hashes=[b"new 1", b"new 2"])
    cached.apply([old, new])
    assert cached.keys() == prompt.keys(4)[:1]
    cached.apply([BlockRemoved(block_hashes=[old.block_hashes[0]])])
    assert cached.keys() == prompt.keys(4)[:1]
    cached.apply([BlockRemoved(block_hashes=[b"new 2"])])
    assert cached.keys() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"medium": "CPU"},
        {"medium": "STORAGE"},
        {"kv_cache_spec_kind": "sliding_window"},
        {"kv_cache_spec_kind": "mamba"},
        {"kv_cache_spec_kind": "of a later version"},
        {"token_ids": [0] * 11},
        {"token_ids": []},
        {"token_ids": [-1] * 12},
        {"extra_keys": [None]},
        {"extra_keys": [("not a salt after the first block",)] * 6},
        {"extra_keys": [(["image"],)] * 6},
        {"extra_keys": [(["image", 2**40],)] * 6},
    ],
)
def test_blocks_that_are_no_prefix_of_a_prompt_are_left_out(
    engine: Engine, cached: CachedBlocks, fields: dict[str, Any]
) -> None:
    cached.apply([altered(engine.stored(PROMPT, 0, 6), **fields)])
    assert cached.keys() == []


@pytest.mark.parametrize("kind", [None, "full_attention", "mla_attention", "sink_full_attention"])
def test_blocks_of_every_kind_of_full_attention_are_followed(
    engine: Engine, cached: CachedBlocks, kind: str | None
) -> None:
    cached.apply([altered(engine.stored(PROMPT, 0, 6), kv_cache_spec_kind=kind)])
    assert cached.keys() == PROMPT.keys(4)


def test_an_engine_without_medium_and_group_in_its_events_is_followed(
    engine: Engine, cached: CachedBlocks
) -> None:
    event = altered(engine.stored(PROMPT, 0, 6), medium=None, group_idx=None, extra_keys=None)
    cached.apply([event])
    assert cached.keys() == PROMPT.keys(4)
    cached.apply([BlockRemoved(block_hashes=[event.block_hashes[5]])])
    assert cached.keys() == PROMPT.keys(4)[:2]


def test_only_the_full_attention_group_of_layers_is_followed(
    engine: Engine, cached: CachedBlocks
) -> None:
    full = altered(engine.stored(PROMPT, 0, 6), group_idx=1)
    windows = altered(full, group_idx=0, kv_cache_spec_kind="sliding_window")
    other_full = altered(full, group_idx=2)
    cached.apply([windows, full, other_full])
    for group in (0, 2):
        cached.apply([BlockRemoved(block_hashes=full.block_hashes, medium="GPU", group_idx=group)])
    assert cached.keys() == PROMPT.keys(4)
    cached.apply([BlockRemoved(block_hashes=full.block_hashes, medium="GPU", group_idx=1)])
    assert cached.keys() == []


def test_the_removal_of_an_offloaded_copy_removes_no_block(
    engine: Engine, cached: CachedBlocks
) -> None:
    cached.apply(engine.request(PROMPT))
    cached.apply([msgspec.structs.replace(removed(engine, 0), medium="CPU")])
    assert cached.keys() == PROMPT.keys(4)


def test_a_pulled_block_stays_in_the_host_tier_when_the_cache_evicts_it(engine: Engine) -> None:
    """A new engine reports the copy in the host tier first."""
    cached = cached_blocks(segment_tokens=4, tiers=[Tier.HOST])
    cached.apply(engine.pull(PROMPT, 4))
    cached.apply([removed(engine, block) for block in range(6)])
    assert cached.keys() == [tier_key(key, Tier.HOST) for key in PROMPT.keys(4)[:2]]


def test_a_pulled_block_that_has_left_the_host_tier_is_not_held(engine: Engine) -> None:
    cached = cached_blocks(segment_tokens=4, tiers=[Tier.HOST])
    [first, *others] = engine.pull(PROMPT, 2)
    assert isinstance(first, BlockStored)
    gone = BlockRemoved(first.block_hashes, medium="CPU", group_idx=0)
    cached.apply([first, first, gone, gone, *others])
    cached.apply([removed(engine, block) for block in range(6)])
    assert cached.keys() == []


def test_a_pulled_block_of_another_group_is_not_held(engine: Engine) -> None:
    cached = cached_blocks(segment_tokens=4, tiers=[Tier.HOST])
    events = engine.pull(PROMPT, 6)[:6]
    copies = [altered(event, group_idx=1) for event in events if isinstance(event, BlockStored)]
    cached.apply([*copies, engine.stored(PROMPT, 0, 6)])
    cached.apply([removed(engine, block) for block in range(6)])
    assert cached.keys() == []


def test_a_removal_of_an_unknown_block_changes_nothing(cached: CachedBlocks) -> None:
    cached.apply([BlockRemoved(block_hashes=[b"unknown", 7])])
    assert cached.keys() == []


@pytest.mark.parametrize("size", [3, 8, 0])
def test_blocks_that_do_not_divide_a_segment_are_left_out_and_logged_once(
    cached: CachedBlocks, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    event = BlockStored(
        block_hashes=[b"1"], parent_block_hash=None, token_ids=[0] * size, block_size=size
    )
    with caplog.at_level(logging.WARNING):
        cached.apply([event, event])
    assert cached.keys() == []
    assert len(caplog.messages) == 1 and f"blocks of {size} tokens" in caplog.text


def test_blocks_of_mixed_sizes_that_cross_a_segment_are_left_out(cached: CachedBlocks) -> None:
    small = BlockStored(
        block_hashes=[b"small"], parent_block_hash=None, token_ids=[0, 1], block_size=2
    )
    large = BlockStored(
        block_hashes=[b"large"],
        parent_block_hash=b"small",
        token_ids=[2, 3, 4, 5],
        block_size=4,
    )
    cached.apply([small, large])
    assert cached.keys() == []
    cached.apply([BlockRemoved(block_hashes=[b"small", b"large"])])
    assert not cached._blocks


def test_a_long_prompt_is_followed_block_by_block(cached: CachedBlocks) -> None:
    engine = Engine(block_size=2)
    prompt = Prompt(tuple(range(8_000)))
    events = engine.request(prompt, chunk=1)
    cached.apply(reversed(events))  # each is found by the one before it, the last of all
    assert cached.keys() == prompt.keys(4)
    cached.apply([BlockRemoved(block_hashes=[engine.blocks(prompt)[0][0]])])
    assert cached.keys() == []


class _CountedKey(bytes):
    """A segment key that counts how often a dict or a set looks at it."""

    looks = 0

    def __hash__(self) -> int:
        _CountedKey.looks += 1
        return super().__hash__()


class _CountingHasher(SegmentHasher):
    def extend(
        self, previous: bytes, packed_tokens: bytes | memoryview, media: SegmentMedia = ()
    ) -> bytes:
        return _CountedKey(super().extend(previous, packed_tokens, media))


def chain_of(segments: int) -> BlockStored:
    hashes: list[bytes | int] = list(range(segments))
    return BlockStored(hashes, None, [0] * (4 * segments), 4)


def test_a_chunk_of_a_large_cache_takes_no_more_work_than_one_of_a_small_cache() -> None:
    """The loop that carries tokens computes the chunks."""
    cached = CachedBlocks(_CountingHasher(b"secret"), MODEL, REVISION, 4)
    cached.apply([chain_of(300_000)])
    _CountedKey.looks, looks = 0, []
    for chunk in cached.chunks(2048):
        looks.append(_CountedKey.looks)
        assert len(chunk) <= 2048
        _CountedKey.looks = 0
    assert len(looks) == 147
    assert max(looks) <= 2048


def test_chunks_are_all_keys_in_order_without_those_dropped_meanwhile() -> None:
    cached = cached_blocks(4)
    cached.apply([chain_of(5)])
    keys = cached.keys()
    chunks = cached.chunks(2)
    assert next(chunks) == keys[:2]
    cached.apply([BlockRemoved([4, 3])])
    assert list(chunks) == [[keys[2]], []]


def test_segments_of_files_that_others_wrote_stay_when_the_cache_is_dropped(engine: Engine) -> None:
    cached = cached_blocks(4, (Tier.HOST, Tier.DISK))
    one, two, three = (tier_key(key, Tier.DISK) for key in PROMPT.keys(4))
    cached.set_readable(PROMPT.keys(4)[:2])
    assert cached.take_changes().set == [one, two]
    cached.apply(engine.request(PROMPT))
    cached.set_readable([])
    assert not cached.take_changes().cleared  # they are closer than a file
    cached.set_readable(PROMPT.keys(4))
    cached.take_changes()
    cached.apply([AllBlocksCleared()])
    assert cached.keys() == [one, two, three]
    cached.forget()
    assert cached.keys() == [one, two, three]
    cached.take_changes()
    cached.set_readable(PROMPT.keys(4)[:1])
    assert cached.take_changes().cleared == [three, two]


def test_each_block_is_reported_once_when_it_was_written(engine: Engine) -> None:
    told: list[tuple[bytes, bytes | None, bytes, int]] = []
    cached = CachedBlocks(
        HASHER,
        MODEL,
        REVISION,
        4,
        tiers=Tier,
        on_written=lambda *block: told.append(block),
    )
    cached.apply(engine.request(PROMPT))
    engine.hosted = dict.fromkeys(hash_ for hash_, _ in engine.blocks(PROMPT))
    for _ in range(2):
        for index in range(3):
            cached.apply(engine.write(index))
    first, second, third = (hash_ for hash_, _ in engine.blocks(PROMPT)[:3])
    one = PROMPT.keys(4)[0]
    root = told[0][2]
    assert told == [(first, None, root, 2), (second, first, one, 0), (third, second, one, 2)]
