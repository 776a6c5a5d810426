"""What no router can beat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.load.oracle import most_cached

prompts = st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=12)


def cached_blocks(caches: set[tuple[int, ...]], prompt: list[int], segment_tokens: int) -> int:
    """A slow engine with a prefix cache that never evicts."""
    cached = 0
    for end in range(segment_tokens, len(prompt), segment_tokens):
        if tuple(prompt[:end]) not in caches:
            break
        cached = end
    caches |= {
        tuple(prompt[:end]) for end in range(segment_tokens, len(prompt) + 1, segment_tokens)
    }
    return cached


def test_the_first_prompt_finds_nothing() -> None:
    assert most_cached([[1, 2, 3, 4]], 2) == [0]


def test_whole_segments_of_an_earlier_prompt_are_found() -> None:
    assert most_cached([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 7]], 2) == [0, 4]


def test_a_partial_segment_is_not_found() -> None:
    assert most_cached([[1, 2, 3], [1, 2, 3, 4, 5]], 2) == [0, 2]


def test_the_last_token_of_a_prompt_is_never_cached() -> None:
    assert most_cached([[1, 2, 3, 4], [1, 2, 3, 4]], 2) == [0, 2]


def test_a_segment_counts_only_after_the_same_prefix() -> None:
    assert most_cached([[1, 1, 2, 2, 0], [3, 3, 2, 2, 0]], 2) == [0, 0]


def test_the_longest_of_several_earlier_prompts_counts() -> None:
    assert most_cached([[1, 1, 2, 2], [1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 3, 3, 4]], 2)[2] == 6


@given(prompts, st.integers(1, 3))
def test_the_oracle_equals_a_single_engine_that_serves_every_prompt(
    prompts: list[list[int]], segment_tokens: int
) -> None:
    cache: set[tuple[int, ...]] = set()
    expected = [cached_blocks(cache, prompt, segment_tokens) for prompt in prompts]
    assert most_cached(prompts, segment_tokens) == expected


@given(prompts, st.integers(1, 3), st.integers(0, 2**32))
def test_no_distribution_over_engines_reuses_more_than_the_oracle(
    prompts: list[list[int]], segment_tokens: int, seed: int
) -> None:
    caches: list[set[tuple[int, ...]]] = [set(), set(), set()]
    spread = [(seed >> (2 * i)) % 3 for i in range(len(prompts))]
    found = [
        cached_blocks(caches[engine], prompt, segment_tokens)
        for engine, prompt in zip(spread, prompts, strict=True)
    ]
    best = most_cached(prompts, segment_tokens)
    assert all(f <= b for f, b in zip(found, best, strict=True))
