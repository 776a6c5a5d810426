"""Only replicas of the same fleet read what a replica hands over."""

from __future__ import annotations

import pytest

from deployments.engine.handover.sealed_handover import HandedPrefix, Handover, HandoverSeal

HANDOVER = Handover("10.0.0.1:5710", (HandedPrefix(b"secret prompt", "salt"),))


def test_a_handover_is_the_same_after_its_way() -> None:
    seal = HandoverSeal("secret")
    assert seal.opened(seal.sealed(HANDOVER)) == HANDOVER


def test_a_sealed_handover_does_not_show_its_tokens() -> None:
    assert b"secret prompt" not in HandoverSeal("secret").sealed(HANDOVER)


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", HandoverSeal("another secret").sealed(HANDOVER)],
    ids=["nothing", "nonsense", "of another fleet"],
)
def test_what_no_replica_of_the_fleet_sealed_is_rejected(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a handover of this fleet"):
        HandoverSeal("secret").opened(body)
