"""Segment keys: equal prefixes, and only they, share keys."""

from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.segment_keys import (
    KEY_BYTES,
    MAX_TOKEN,
    Media,
    Namespace,
    SegmentHasher,
    index_secret,
    pack,
    unpack,
)

HASHER = SegmentHasher(index_secret("fleet secret"))
NAMESPACE = Namespace("main")

T = TypeVar("T")
Prompt = tuple[list[int], list[Media]]

# Few values, so that equal prefixes are common.
token_lists = st.lists(st.integers(0, 2), max_size=24)
names = st.sampled_from(["", "a", "b", "ab", "a\1b", "b\0"])
maybe_names = st.none() | names
namespaces = st.builds(Namespace, names, maybe_names, maybe_names, maybe_names)
media_lists = st.lists(
    st.builds(Media, names, st.integers(0, 12), st.integers(1, 8)), max_size=3, unique=True
)


def pairs(values: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, T]]:
    """Equal in half of the cases: two prompts that differ in one field show most."""
    return values.flatmap(lambda value: st.tuples(st.just(value), st.just(value) | values))


def same_segments(one: Prompt, other: Prompt, size: int) -> int:
    """How many first segments are equal in tokens and in the media that overlap them."""

    def segment(prompt: Prompt, start: int) -> tuple[list[int], set[tuple[str, int]]]:
        tokens, media = prompt
        end = start + size
        inside = (m for m in media if m.offset < end and m.offset + m.length > start)
        # A segment shows which item is in it and where that began, not how far it goes on.
        return tokens[start:end], {(m.identifier, m.offset) for m in inside}

    shorter = min(len(one[0]), len(other[0]))
    starts = range(0, shorter - size + 1, size)
    return next(
        (i for i, at in enumerate(starts) if segment(one, at) != segment(other, at)), len(starts)
    )


def shared_keys(one: list[bytes], other: list[bytes]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


@given(pairs(namespaces), pairs(token_lists), pairs(media_lists), st.integers(1, 6))
def test_two_prompts_share_the_keys_of_their_equal_first_segments_and_no_others(
    namespaces: tuple[Namespace, Namespace],
    token_lists: tuple[list[int], list[int]],
    media_lists: tuple[list[Media], list[Media]],
    size: int,
) -> None:
    one, other = zip(token_lists, media_lists, strict=True)
    keys = HASHER.keys(namespaces[0], one[0], size, one[1])
    other_keys = HASHER.keys(namespaces[1], other[0], size, other[1])
    expected = same_segments(one, other, size) if namespaces[0] == namespaces[1] else 0
    assert shared_keys(keys, other_keys) == expected
    assert len(set(keys) | set(other_keys)) == len(keys) + len(other_keys) - expected


@given(token_lists, token_lists, token_lists, media_lists, st.integers(1, 6))
def test_tokens_after_a_prefix_do_not_change_its_keys(
    tokens: list[int], more: list[int], others: list[int], media: list[Media], size: int
) -> None:
    keys = HASHER.keys(NAMESPACE, tokens + more, size, media)
    assert shared_keys(keys, HASHER.keys(NAMESPACE, tokens + others, size, media)) >= (
        len(tokens) // size
    )


@given(token_lists, st.integers(1, 6), st.integers(1, 6))
def test_keys_of_two_segment_sizes_agree_only_at_the_root(
    tokens: list[int], size: int, other_size: int
) -> None:
    keys = HASHER.keys(NAMESPACE, tokens, size)
    other_keys = HASHER.keys(NAMESPACE, tokens, other_size)
    assert size == other_size or not set(keys) & set(other_keys)


@given(token_lists, st.integers(1, 6))
def test_only_whole_segments_have_a_key(tokens: list[int], size: int) -> None:
    keys = HASHER.keys(NAMESPACE, tokens, size)
    assert len(keys) == len(tokens) // size
    assert all(len(key) == KEY_BYTES for key in keys)


@given(namespaces, namespaces)
def test_two_namespaces_have_two_roots(one: Namespace, other: Namespace) -> None:
    assert (HASHER.root(one) == HASHER.root(other)) == (one == other)


@pytest.mark.parametrize("field", ["revision", "lora", "cache_salt"])
def test_an_empty_name_is_not_a_missing_one(field: str) -> None:
    assert HASHER.root(replace(NAMESPACE, **{field: ""})) != HASHER.root(NAMESPACE)


def test_one_name_never_has_the_key_of_two_names() -> None:
    assert HASHER.root(Namespace("a\1b")) != HASHER.root(Namespace("a", "b\0"))


def test_media_at_a_different_position_change_the_key() -> None:
    keys = {
        tuple(HASHER.keys(NAMESPACE, [0] * 8, 4, [Media("image", offset, 2)]))
        for offset in range(7)
    }
    assert len(keys) == 7


def test_media_change_no_segment_before_them() -> None:
    without = HASHER.keys(NAMESPACE, [0] * 12, 4)
    with_media = HASHER.keys(NAMESPACE, [0] * 12, 4, [Media("image", 5, 2)])
    assert [a == b for a, b in zip(without, with_media, strict=True)] == [True, False, False]


def test_the_same_prompt_has_different_keys_with_a_different_secret() -> None:
    other = SegmentHasher(index_secret("another secret"))
    ours, theirs = (h.keys(NAMESPACE, list(range(8)), 4) for h in (HASHER, other))
    assert not set(ours) & set(theirs)


def test_the_index_secret_is_derived_from_the_engine_secret() -> None:
    assert len(index_secret("secret")) == 32
    assert index_secret("secret") != index_secret("secret ")
    with pytest.raises(ValueError, match="engine secret"):
        index_secret("")


@given(st.lists(st.integers(0, MAX_TOKEN)))
def test_tokens_are_packed_as_little_endian_uint32(tokens: list[int]) -> None:
    assert pack(tokens) == pack(tuple(tokens)) == b"".join(t.to_bytes(4, "little") for t in tokens)


@pytest.mark.parametrize("token", [-1, MAX_TOKEN + 1, 2**80])
def test_the_error_names_a_token_outside_uint32(token: int) -> None:
    with pytest.raises(ValueError, match=f"token id {token} is not between 0 and {MAX_TOKEN}"):
        HASHER.keys(NAMESPACE, [1, token], 1)


@pytest.mark.parametrize("size", [0, -128])
def test_a_segment_without_tokens_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"not {size}"):
        HASHER.keys(NAMESPACE, [1], size)


def test_invalid_unicode_text_can_be_a_namespace() -> None:
    lone_surrogates = {HASHER.root(Namespace("main", cache_salt=s)) for s in ("\ud800", "\udfff")}
    assert len(lone_surrogates) == 2


@given(st.lists(st.integers(0, MAX_TOKEN)))
def test_packed_tokens_are_the_same_when_unpacked(tokens: list[int]) -> None:
    assert unpack(pack(tokens)) == tokens
