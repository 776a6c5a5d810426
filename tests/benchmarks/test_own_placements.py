"""What a gateway knows of caches without an index."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale.choosers import OwnPlacements


def test_a_gateway_without_an_index_remembers_where_it_sent_a_prefix() -> None:
    own = OwnPlacements(max_segments=10)
    own.placed([b"1", b"2"], slot=3)
    own.placed([b"1", b"9"], slot=4)
    assert own.depths([b"1", b"2", b"5"]) == {3: 2, 4: 1}
    assert own.depths([b"7"]) == {}


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=4), st.integers(0, 2))))
def test_own_placements_return_the_longest_prefix_sent_to_each_replica(
    sent: list[tuple[str, int]],
) -> None:
    def keys(text: str) -> list[bytes]:
        return [text[:end].encode() for end in range(1, len(text) + 1)]

    own = OwnPlacements(max_segments=1000)
    for text, slot in sent:
        own.placed(keys(text), slot)
    for slot in range(3):
        known = {text[:end] for text, at in sent if at == slot for end in range(1, len(text) + 1)}
        deepest = max((end for end in range(5) if "abab"[:end] in known), default=0)
        assert own.depths(keys("abab")).get(slot, 0) == deepest
