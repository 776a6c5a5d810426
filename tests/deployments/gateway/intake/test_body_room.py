"""Which bodies a gateway has room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.intake.body_room import SMALL_BODY_BYTES, Held, has_room

MB = 2**20
MOST = 128 * MB


def test_a_tenant_leaves_room_for_others() -> None:
    assert has_room(Held(0, 92 * MB, 92 * MB), 4 * MB, MOST, is_only_tenant=False)
    assert not has_room(Held(0, 93 * MB, 93 * MB), 4 * MB, MOST, is_only_tenant=False)


def test_the_only_tenant_may_use_the_whole_limit() -> None:
    assert has_room(Held(0, 124 * MB, 124 * MB), 4 * MB, MOST, is_only_tenant=True)
    assert not has_room(Held(0, 125 * MB, 125 * MB), 4 * MB, MOST, is_only_tenant=True)


def test_a_small_body_has_room_when_a_large_one_has_none() -> None:
    assert has_room(Held(0, 0, MOST), SMALL_BODY_BYTES, MOST, is_only_tenant=False)
    assert not has_room(Held(0, 0, MOST), SMALL_BODY_BYTES + 1, MOST, is_only_tenant=False)
    assert not has_room(Held(SMALL_BODY_BYTES, SMALL_BODY_BYTES, MOST), 1, MOST, False)


def test_one_body_of_a_tenant_may_take_all_that_is_left() -> None:
    assert has_room(Held(3 * MB, 3 * MB, 3 * MB), MB, 4 * MB, is_only_tenant=False)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=400), st.integers(1, 4))
def test_a_flood_of_three_tenants_leaves_room_for_a_fourth(who: list[int], size_mb: int) -> None:
    held = dict.fromkeys(range(4), 0)
    for tenant in who:
        size = size_mb * MB
        if tenant != 3 and has_room(Held(0, held[tenant], sum(held.values())), size, MOST, False):
            held[tenant] += size
    assert sum(held.values()) <= MOST
    newcomer = Held(0, 0, sum(held.values()))
    assert has_room(newcomer, MB // 2, MOST, is_only_tenant=False)
