"""A replica's lease has the same text while nothing changes."""

from __future__ import annotations

import json

from deployments.engine.serving.lease_text import LeaseText
from router.redis.lease_signature import LeaseSigner
from router.redis.signature import Signer
from tests.router.loads import load

SIGNER = LeaseSigner(Signer("a secret of the fleet's engines"), "pool")


def test_the_lease_of_an_idle_replica_does_not_change() -> None:
    text = LeaseText(SIGNER)
    first = text.of(load("r0", sequence=1))
    assert text.of(load("r0", sequence=2)) == first
    assert text.of(load("r0", sequence=3)) == first
    assert SIGNER.is_genuine(0, first)


def test_any_change_is_published_with_its_sequence() -> None:
    text = LeaseText(SIGNER)
    first = text.of(load("r0", sequence=1))
    second = text.of(load("r0", sequence=2, leaving=True))
    assert second != first
    assert json.loads(second)["leaving"] is True
    assert json.loads(second)["sequence"] == 2
    assert json.loads(text.of(load("r0", sequence=3)))["sequence"] == 3


def test_a_report_that_came_with_an_answer_is_followed_by_a_newer_snapshot() -> None:
    """Gateways trust the highest sequence: without a newer snapshot the report would stay."""
    text = LeaseText(SIGNER)
    text.of(load("r0", sequence=1))
    reported = 2
    after = text.of(load("r0", sequence=reported + 1))
    assert json.loads(after)["sequence"] > reported


def test_the_lease_text_depends_on_the_slot() -> None:
    text = LeaseText(SIGNER)
    first = text.of(load("r0", slot=0, sequence=1))
    assert SIGNER.is_genuine(1, text.of(load("r0", slot=1, sequence=2)))
    assert first != text.of(load("r0", slot=1, sequence=3))
