"""Lost reuse is classified: every token of it once, to the part that lost it."""

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.choice.loss import NotReused, split
from tests.router.loads import tokens

flags = st.booleans()


@pytest.mark.parametrize(
    ("reusable", "best", "chosen", "confirmed", "loss"),
    [
        (1024, 1024, 1024, 1024, NotReused()),
        (1024, 0, 0, 0, NotReused(new=1024)),
        (1024, 512, 512, 512, NotReused(new=512)),
        (1024, 512, 128, 128, NotReused(new=512, routing=384)),
        (1024, 512, 512, 128, NotReused(new=512, engine=384)),
        (1024, 512, 256, 128, NotReused(new=512, routing=256, engine=128)),
        (1024, 512, 256, 640, NotReused(new=384)),
        (1024, 512, 256, 2000, NotReused()),
        (256, 512, 512, 0, NotReused(engine=256)),
    ],
)
def test_lost_reuse_is_split_when_all_replicas_are_in_the_index(
    reusable: int, best: int, chosen: int, confirmed: int, loss: NotReused
) -> None:
    found = split(
        reusable=reusable,
        best_cached=best,
        chosen_cached=chosen,
        confirmed=confirmed,
        signal=True,
        all_synced=True,
    )
    assert found == loss


def test_unknown_reuse_is_attributed_to_the_index_while_a_replica_is_not_synced() -> None:
    loss = split(
        reusable=1024,
        best_cached=512,
        chosen_cached=256,
        confirmed=0,
        signal=True,
        all_synced=False,
    )
    assert loss == NotReused(index=512, routing=256, engine=256)


def test_without_a_signal_all_lost_reuse_is_attributed_to_the_index() -> None:
    loss = split(
        reusable=1024, best_cached=0, chosen_cached=0, confirmed=128, signal=False, all_synced=True
    )
    assert loss == NotReused(index=896)


@given(tokens, tokens, tokens, tokens, flags, flags)
def test_the_parts_are_never_negative_and_add_up(
    reusable: int, best: int, chosen: int, confirmed: int, signal: bool, synced: bool
) -> None:
    loss = split(
        reusable=reusable,
        best_cached=best,
        chosen_cached=chosen,
        confirmed=confirmed,
        signal=signal,
        all_synced=synced,
    )
    assert min(astuple(loss)) >= 0
    assert sum(astuple(loss)) == max(0, reusable - confirmed)


def test_new_tokens_are_no_loss() -> None:
    found = NotReused(new=7, routing=1, index=2, engine=3)
    assert found.losses == {"routing": 1, "index": 2, "engine": 3}
