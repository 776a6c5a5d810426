"""Recent placements: announced while they may still come true, popular while they are requested."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.held_items import held_items
from router.board.recent import (
    ANNOUNCED_AFTER_S,
    FADED_S,
    LATELY_S,
    MAX_ANNOUNCED,
    MAX_ANNOUNCED_S,
    MAX_MATCHED,
    PREFIX_BYTES,
    Placed,
    Recent,
    RecentPlacements,
    announcement,
)

KEYS = [random.Random(i).randbytes(16) for i in range(600)]
REPLICAS = {0: "i0", 1: "i1", 2: "i2"}


def short(*positions: int) -> tuple[bytes, ...]:
    return tuple(KEYS[position][:PREFIX_BYTES] for position in positions)


def placed(ticket: str = "t", slot: int = 0, held: int = 0, upto: int = 8, **fields: Any) -> Placed:
    """A placement of the first `upto` segments in a slot that holds `held` of them."""
    of: dict[str, Any] = {
        "gateway": "g",
        "ticket": ticket,
        "slot": slot,
        "incarnation": f"i{slot}",
        "prompt_tokens": 128 * upto,
        "uncached_tokens": 128 * (upto - held),
        "predicted_ttft_s": 1.0,
        "announced": announcement(KEYS[:upto], held),
        **fields,
    }
    return Placed(**of)


@pytest.fixture
def recent() -> RecentPlacements:
    return RecentPlacements()


def depths(
    recent: RecentPlacements,
    held: dict[int, int] | None = None,
    keys: list[bytes] | None = None,
    now: float = 0.0,
) -> dict[int, int]:
    return dict(recent.about(keys or KEYS[:8], held or {}, REPLICAS, now).depths)


def test_an_unplaced_prompt_has_no_recent_placements(recent: RecentPlacements) -> None:
    assert recent.about(KEYS[:8], {}, REPLICAS, 0.0) == Recent(
        placements=dict.fromkeys(REPLICAS, 0)
    )


def test_an_announced_prompt_counts_as_held_where_it_was_placed(recent: RecentPlacements) -> None:
    recent.add(placed(slot=1), 0.0)
    assert depths(recent) == {1: 8}
    assert depths(recent, keys=KEYS[:20]) == {1: 8}
    assert depths(recent, keys=KEYS[:3]) == {1: 3}


def test_an_announcement_extends_the_confirmed_prefix(recent: RecentPlacements) -> None:
    recent.add(placed(slot=1, held=5), 0.0)
    assert depths(recent, {1: 5}) == {1: 8}
    assert depths(recent, {1: 6}) == {1: 8}
    assert depths(recent, {0: 2, 1: 4}) == {0: 2, 1: 4}  # the fifth has gone since
    assert depths(recent) == {}


def test_a_prompt_matches_only_the_prefix_that_it_shares_with_an_announcement(
    recent: RecentPlacements,
) -> None:
    recent.add(placed(), 0.0)
    assert depths(recent, keys=KEYS[:4] + KEYS[100:104]) == {0: 4}


def test_announcements_of_an_earlier_incarnation_are_ignored(recent: RecentPlacements) -> None:
    recent.add(placed(incarnation="before"), 0.0)
    assert depths(recent) == {}


def test_an_announcement_expires_when_its_first_token_is_long_overdue(
    recent: RecentPlacements,
) -> None:
    recent.add(placed(predicted_ttft_s=3.0), 10.0)
    assert depths(recent, now=10.0 + 2.9 + ANNOUNCED_AFTER_S) == {0: 8}
    assert depths(recent, now=10.0 + 3.0 + ANNOUNCED_AFTER_S) == {}


@pytest.mark.parametrize("ttft", [1e9, float("inf"), float("nan")])
def test_every_announcement_expires(recent: RecentPlacements, ttft: float) -> None:
    recent.add(placed(predicted_ttft_s=ttft), 0.0)
    assert depths(recent, now=MAX_ANNOUNCED_S - 0.1) == {0: 8}
    assert depths(recent, now=MAX_ANNOUNCED_S) == {}


def test_a_request_that_failed_announces_nothing(recent: RecentPlacements) -> None:
    recent.add(placed(), 0.0)
    recent.withdraw("t")
    recent.withdraw("t")
    recent.withdraw("never placed")
    assert depths(recent) == {}


def test_a_segment_is_announced_until_the_last_that_announces_it_ends(
    recent: RecentPlacements,
) -> None:
    recent.add(placed("a"), 0.0)
    recent.add(placed("b", upto=6), 0.0)
    recent.add(placed("b", upto=6), 0.0)  # reported twice
    recent.withdraw("a")
    assert depths(recent) == {0: 6}
    recent.withdraw("b")
    assert depths(recent) == {}


def test_a_reused_ticket_gets_a_new_expiration_time(recent: RecentPlacements) -> None:
    recent.add(placed(), 0.0)
    recent.withdraw("t")
    recent.add(placed(slot=1, predicted_ttft_s=5.0), 0.0)
    assert depths(recent, now=4.0) == {1: 8}


def test_only_the_start_of_a_long_prompt_is_announced() -> None:
    assert announcement(KEYS, 10) == short(*range(10, 10 + MAX_ANNOUNCED))


def test_only_the_latest_announcements_are_remembered() -> None:
    recent = RecentPlacements(max_placements=3)
    for i in range(20):
        recent.add(placed(f"t{i}", announced=announcement(KEYS[10 * i :], 0)[:8]), i * 1e-3)
    held = [i for i in range(20) if depths(recent, keys=KEYS[10 * i : 10 * i + 8], now=0.02)]
    assert held == [17, 18, 19]


def test_only_the_latest_counted_placements_are_kept() -> None:
    recent = RecentPlacements(max_counted=3)
    for i in range(20):
        recent.add(placed(f"t{i}", incarnation=f"i{i}", matched=short(i)), i * 1e-3)
    popular = [recent.about(KEYS[i:], {0: 1}, {0: ""}, 0.02).popularity for i in range(20)]
    assert [i for i in range(20) if popular[i]] == [17, 18, 19]
    placements = recent.about([], {}, {i: f"i{i}" for i in range(20)}, 0.02).placements
    assert [i for i in range(20) if placements[i]] == [17, 18, 19]


def test_prompts_without_new_requests_are_forgotten() -> None:
    """However many came once, and before the limit is reached: a window, and no leak."""
    recent = RecentPlacements()
    for i in range(300):
        now = i * FADED_S / 100
        recent.add(placed(f"t{i}", incarnation=f"i{i}", matched=short(i)), now)
    held = held_items(recent)
    assert held["Lately.counts"] == 100 + 100 + 1
    last = recent.about(KEYS[299:], {0: 1}, {0: "i299", 1: "i200", 2: "i199"}, now)
    assert last.popularity == 1
    assert last.placements == {0: 1, 1: pytest.approx(math.exp(-4.95)), 2: 0}


def test_withdrawn_announcements_do_not_accumulate() -> None:
    recent = RecentPlacements(max_placements=3)
    for i in range(100):
        recent.add(placed(f"t{i}"), 0.0)
        recent.withdraw(f"t{i}")
    assert held_items(recent).total() <= 7


def test_cached_depths_of_candidates_are_matched_deepest_last(
    recent: RecentPlacements,
) -> None:
    recent.add(placed(slot=2), 0.0)
    about = recent.about(KEYS[:20], {0: 3, 1: 3, 2: 5, 7: 20}, REPLICAS, 0.0)
    assert about.matched == short(2, 4, 7)


def test_the_deepest_of_many_depths_are_matched(recent: RecentPlacements) -> None:
    replicas = {slot: f"i{slot}" for slot in range(20)}
    held = {slot: slot + 1 for slot in range(20)}
    matched = recent.about(KEYS[:20], held, replicas, 0.0).matched
    assert matched == short(*range(20 - MAX_MATCHED, 20))


def test_a_prefix_is_as_popular_as_its_recent_placements(recent: RecentPlacements) -> None:
    for i in range(3):
        recent.add(placed(f"hot{i}", matched=short(1, 4)), 0.0)
    recent.add(placed("cold"), 0.0)
    about = recent.about(KEYS[:8], {0: 5, 1: 2}, REPLICAS, 0.0)
    assert about.popularity == pytest.approx(3)
    assert about.traffic_share == pytest.approx(0.75)
    assert recent.about(KEYS[:8], {0: 2}, REPLICAS, 0.0).popularity == pytest.approx(3)
    assert recent.about(KEYS[:8], {0: 3}, REPLICAS, 0.0).popularity == 0
    later = recent.about(KEYS[:8], {0: 5}, REPLICAS, LATELY_S)
    assert later.popularity == pytest.approx(3 / 2.718, rel=1e-3)
    assert later.traffic_share == pytest.approx(0.75)


def test_a_prefix_that_is_only_announced_is_not_yet_popular(recent: RecentPlacements) -> None:
    for i in range(3):
        recent.add(placed(f"t{i}", matched=short(7)), 0.0)
    assert recent.about(KEYS[:8], {}, REPLICAS, 0.0).popularity == 0


def test_placements_are_counted_by_replica_and_fade(recent: RecentPlacements) -> None:
    recent.add(placed("a", slot=1), 0.0)
    recent.add(placed("b", slot=1), 0.0)
    recent.add(placed("c", slot=2, announced=()), 0.0)
    assert recent.about([], {}, REPLICAS, 0.0).placements == {0: 0, 1: 2, 2: 1}
    assert recent.about([], {}, REPLICAS, 10 * LATELY_S).placements[1] < 0.001


slots, chains, lengths = st.integers(0, 2), st.integers(0, 3), st.integers(0, 12)
steps = st.lists(
    st.tuples(st.sampled_from("abcdef"), slots, chains, lengths, st.booleans()), max_size=30
)


@given(steps, st.dictionaries(slots, st.integers(0, 8)), chains)
def test_announcements_never_reduce_confirmed_depths_and_expire(
    steps: list[tuple[str, int, int, int, bool]], held: dict[int, int], chain: int
) -> None:
    recent = RecentPlacements(max_placements=4)
    chained = [KEYS[100 * i : 100 * i + 12] for i in range(4)]
    for now, (ticket, slot, which, upto, withdrawn) in enumerate(steps):
        if withdrawn:
            recent.withdraw(ticket)
        else:
            keys = announcement(chained[which][:upto], 0)
            recent.add(placed(ticket, slot, announced=keys), now * 0.1)
    confirmed = {slot: depth for slot, depth in held.items() if depth}
    found = recent.about(chained[chain], held, REPLICAS, 3.0)
    assert all(found.depths[slot] >= depth for slot, depth in confirmed.items())
    assert all(depth <= 12 for depth in found.depths.values())
    assert recent.about(chained[chain], held, REPLICAS, 100.0).depths == confirmed
