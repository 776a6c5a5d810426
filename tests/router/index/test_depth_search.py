"""Depths found by a search are those that reading everything would find."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from router.index.depth_search import CLOSER_READ, FIRST_READ, ROUNDS, DepthSearch
from tests.router.bitmaps import bitmap_of, bitmaps_of


def found_in(bitmaps: Sequence[bytes | None]) -> tuple[dict[int, int], list[int]]:
    """The depths, and how many bitmaps were read in each round."""
    search, read = DepthSearch(len(bitmaps)), []
    while positions := search.positions():
        assert len(positions) == len(set(positions))
        read.append(len(positions))
        search.read([bitmaps[position] for position in positions])
    return search.depths(), read


@st.composite
def pools(draw: st.DrawFn, most_depths: int = 1000) -> tuple[int, dict[int, int]]:
    """A prompt's segments, and the depth of each slot that holds any of it."""
    segments = draw(st.integers(1, 1024))
    random = draw(st.randoms(use_true_random=False))
    replicas = draw(st.sampled_from([1, 2, 9, 64, 1000]))
    kinds = draw(st.integers(1, min(most_depths, replicas)))
    depths = [random.randint(0, segments) for _ in range(kinds)]
    slots = random.sample(range(1000), replicas)
    return segments, {
        slot: depth
        for i, slot in enumerate(slots)
        if (depth := depths[i] if i < kinds else random.choice(depths))
    }


@given(pools(most_depths=85))
@example((1024, {slot: 1 + slot * 12 for slot in range(85)}))
@example((33, {0: 33, 1: 32, 999: 1}))
def test_a_depth_search_finds_the_same_depths_as_reading_everything(
    pool: tuple[int, dict[int, int]],
) -> None:
    segments, depths = pool
    assert found_in(bitmaps_of(depths, segments))[0] == depths


@given(pools())
@example((1024, {slot: 1 + slot for slot in range(1000)}))
def test_with_any_number_of_depths_none_is_reported_too_high_or_much_too_low(
    pool: tuple[int, dict[int, int]],
) -> None:
    segments, depths = pool
    found, _ = found_in(bitmaps_of(depths, segments))
    assert found.keys() == depths.keys()
    assert all(0 <= depth - found[slot] <= 3 for slot, depth in depths.items())


@given(pools())
def test_a_search_reads_few_bitmaps_in_few_rounds(pool: tuple[int, dict[int, int]]) -> None:
    segments, depths = pool
    first, *closer = found_in(bitmaps_of(depths, segments))[1]
    assert first <= FIRST_READ
    assert all(read <= CLOSER_READ for read in closer)
    assert len(closer) < ROUNDS


@given(st.integers(1, 100_000))
def test_an_unknown_prompt_takes_one_small_read(segments: int) -> None:
    depths, read = found_in([None] * segments)
    assert not depths
    assert len(read) == 1 and read[0] <= FIRST_READ


@given(pools(), st.integers(1, FIRST_READ))
def test_a_short_prompt_takes_one_read(pool: tuple[int, dict[int, int]], segments: int) -> None:
    depths = {slot: min(depth, segments) for slot, depth in pool[1].items()}
    assert found_in(bitmaps_of(depths, segments)) == (depths, [segments])


@given(pools(most_depths=20), st.data())
def test_a_lost_key_does_not_hide_the_whole_prompt_behind_it(
    pool: tuple[int, dict[int, int]], data: st.DataObject
) -> None:
    segments, depths = pool
    bitmaps = bitmaps_of(depths, segments)
    last_of_some = {depth - 1 for depth in depths.values()}
    for position in data.draw(st.sets(st.integers(0, segments - 1), max_size=5)) - last_of_some:
        bitmaps[position] = None
    found, _ = found_in(bitmaps)
    assert all(found[slot] == depth for slot, depth in depths.items() if depth == segments)
    assert all(found.get(slot, 0) <= depth for slot, depth in depths.items())


@given(st.lists(st.sets(st.integers(0, 300), max_size=20), max_size=300))
def test_no_slot_is_reported_deeper_than_its_deepest_set_bit(holders: list[set[int]]) -> None:
    found, _ = found_in([bitmap_of(slots) for slots in holders])
    for slot, depth in found.items():
        assert depth >= 1
        assert slot in holders[depth - 1]


def test_trailing_zeros_of_a_bitmap_change_nothing() -> None:
    bitmaps = [bitmap_of({3, 60}), b"\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00", b"\x00", b""]
    assert found_in(bitmaps)[0] == {3: 2, 60: 1}


def test_no_segments_take_no_read() -> None:
    assert found_in([]) == ({}, [])
