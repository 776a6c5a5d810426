"""A lease is trusted when a replica of this fleet wrote it, for this slot of this pool."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.board.load import ReplicaLoad
from router.redis.lease_signature import LeaseSigner
from router.redis.signature import Signer
from tests.router.loads import load

SIGNER = LeaseSigner(Signer("secret"), "fleet/pool")
LEASE = load("r1").to_json()


def test_a_signed_lease_is_genuine_and_still_readable() -> None:
    signed = SIGNER.signed(3, LEASE)
    assert SIGNER.is_genuine(3, signed)
    read = msgspec.json.decode(signed, type=ReplicaLoad)
    assert read == msgspec.json.decode(LEASE, type=ReplicaLoad)
    assert json.loads(signed)["incarnation"] == read.incarnation


def test_a_signature_is_genuine_for_one_slot_of_one_pool_of_one_fleet() -> None:
    signed = SIGNER.signed(3, LEASE)
    assert not SIGNER.is_genuine(4, signed)
    assert not LeaseSigner(Signer("secret"), "fleet/other").is_genuine(3, signed)
    assert not LeaseSigner(Signer("another secret"), "fleet/pool").is_genuine(3, signed)


@given(st.integers(0, len(SIGNER.signed(3, LEASE)) - 1), st.characters())
def test_a_signed_lease_with_a_changed_character_is_not_genuine(at: int, character: str) -> None:
    signed = SIGNER.signed(3, LEASE)
    forged = signed[:at] + character + signed[at + 1 :]
    assert SIGNER.is_genuine(3, forged) == (forged == signed)


@pytest.mark.parametrize("lease", ["", "{}", LEASE, "\ud800" * 60, LEASE[:-1] + ',"signature":""}'])
def test_an_unsigned_lease_is_not_genuine(lease: str) -> None:
    assert not SIGNER.is_genuine(3, lease)


@given(st.text())
def test_checking_a_lease_never_raises_for_any_bytes(lease: str) -> None:
    assert not SIGNER.is_genuine(3, lease)
