"""A simulated engine's prefix cache."""

from __future__ import annotations

from simulator.cache.block_cache import BlockCache


def test_the_least_recently_used_blocks_are_evicted_first_from_a_prompts_end() -> None:
    cache = BlockCache(4)
    assert cache.use([], blank=2) == []
    assert cache.fill(1)
    assert cache.fill(2)
    cache.release([1, 2], blank=0)
    assert cache.use([], blank=2) == []
    assert cache.fill(3)
    assert cache.fill(4)
    cache.release([3, 4], blank=0)
    assert cache.use([3], blank=2) == [2, 1]
    assert cache.use([], blank=2) is None
    assert cache.use([], blank=1) == [4]
