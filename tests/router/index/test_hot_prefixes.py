"""Which prefixes a replica hands to others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.index.hot_prefixes import HOT, HotPrefix, HotPrefixes
from router.index.segment_keys import Namespace, SegmentHasher, index_secret, unpack
from tests.some import some

SEGMENT = 4
HASHER = SegmentHasher(index_secret("fleet secret"))
MOST = 1 << 20


def memory(most_tokens: int = MOST) -> HotPrefixes:
    return HotPrefixes(HASHER, "model", None, SEGMENT, most_tokens)


def found(hot: HotPrefixes, most_prefixes: int = 100, most_tokens: int = MOST) -> list[list[int]]:
    return [unpack(prefix.tokens) for prefix in hot.hottest(most_prefixes, most_tokens)]


def prompt(number: int, segments: int = 2, tail: int = 0) -> list[int]:
    return [number] * segments * SEGMENT + [1000 + tail] * (SEGMENT if tail else 0)


def test_a_prompt_that_was_used_once_is_not_hot() -> None:
    hot = memory()
    hot.used(prompt(1), None)
    assert found(hot) == []


def test_what_two_requests_share_is_hot() -> None:
    hot = memory()
    for tail in (1, 2):
        hot.used([*prompt(1, 4), *[50 + tail] * (SEGMENT - 1)], None)
    assert found(hot) == [prompt(1, 4)]


def test_the_next_turn_of_a_conversation_is_kept_after_what_is_hot() -> None:
    hot = memory()
    hot.used(prompt(1), None)
    hot.used(prompt(1, 2, tail=1), None)
    assert found(hot) == [prompt(1), prompt(1, 2, tail=1)]


def test_a_prompt_whose_larger_part_is_new_is_not_kept() -> None:
    hot = memory()
    for number in (1, 2):
        hot.used([*prompt(9, 1), *prompt(number, 2)], None)
    assert found(hot) == [prompt(9, 1)]


def test_the_prefixes_that_were_used_last_come_first() -> None:
    hot = memory()
    for _ in range(2):
        for number in (1, 2, 3):
            hot.used(prompt(number), None)
    hot.used(prompt(1), None)
    assert found(hot) == [prompt(1), prompt(3), prompt(2)]


def test_a_longer_hot_prefix_contains_the_shorter_one() -> None:
    hot = memory()
    for segments in (1, 3, 3):
        hot.used(prompt(1, segments), None)
    assert found(hot) == [prompt(1, 3)]


def test_prompts_of_tenants_with_other_salts_are_separate() -> None:
    hot = memory()
    hot.used(prompt(1), "a")
    hot.used(prompt(1), "b")
    assert found(hot) == []
    hot.used(prompt(1), "b")
    (prefix,) = hot.hottest(100, MOST)
    namespace = Namespace("model", None, None, "b")
    assert prefix.salt == "b"
    assert list(prefix.keys) == HASHER.keys(namespace, prompt(1), SEGMENT)


def test_a_prefix_that_another_replica_handed_over_is_hot_at_once() -> None:
    hot = memory()
    other = memory()
    hot.used_prefix(other.prefix(b"\0" * SEGMENT * 4 * 2, None), HOT)
    assert found(hot) == [[0] * SEGMENT * 2]


def test_the_number_of_prefixes_and_of_their_tokens_is_bounded() -> None:
    hot = memory()
    for _ in range(2):
        for number in range(5):
            hot.used(prompt(number), None)
    assert found(hot, most_prefixes=2) == [prompt(4), prompt(3)]
    assert found(hot, most_tokens=2 * SEGMENT) == [prompt(4)]


def test_the_prompts_that_were_used_longest_ago_are_forgotten() -> None:
    hot = memory(most_tokens=4 * SEGMENT)
    for number in (1, 2, 3, 1, 3):
        hot.used(prompt(number), None)
    assert found(hot) == [prompt(3)]


def test_of_a_prompt_that_is_too_long_the_start_is_kept() -> None:
    hot = memory(most_tokens=2 * SEGMENT)
    for _ in range(2):
        hot.used(prompt(1, 9), None)
    assert found(hot) == [prompt(1, 2)]


def test_an_engine_without_a_prefix_cache_has_no_hot_prefixes() -> None:
    hot = HotPrefixes(HASHER, "model", None, 0)
    hot.used(prompt(1), None)
    assert hot.hottest(100, MOST) == []


def test_the_start_of_a_prefix_has_the_tokens_of_its_segments() -> None:
    whole = memory().prefix(bytes(range(SEGMENT * 4)) * 3, "s")
    assert whole.length == 3 * SEGMENT
    assert whole.first(2) == HotPrefix(whole.keys[:2], bytes(range(SEGMENT * 4)) * 2, "s")


@given(st.lists(st.lists(st.integers(0, 1), min_size=SEGMENT, max_size=24), min_size=2))
def test_every_kept_prefix_starts_a_prompt_that_was_used(prompts: list[list[int]]) -> None:
    hot = memory(most_tokens=6 * SEGMENT)
    for tokens in [*prompts, prompts[0], prompts[0]]:
        hot.used(tokens, None)
    for tokens in some(found(hot)):
        assert any(one[: len(tokens)] == tokens for one in prompts)
