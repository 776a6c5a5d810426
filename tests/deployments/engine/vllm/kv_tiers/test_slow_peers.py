"""Peers that answer late, or connect anew; the tests of tiers have real ones."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.p2p.manager import P2PSecondaryTierManager, P2PSourceInfo

from deployments.engine.vllm.kv_tiers import peer_tier
from deployments.engine.vllm.kv_tiers.peer_tier import ANSWER_S, PeerTier

PEER = "10.0.0.1:5600"


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Request:
    """A request that pulls from PEER."""

    def get_state(self, of: object) -> P2PSourceInfo:
        return P2PSourceInfo(kv_request_id="one", peer_id=PEER, do_probe=True)


class Session:
    """A connection that is `connected`, and `alive` or not."""

    connected, ready = True, True

    def __init__(self, *, alive: bool) -> None:
        self.alive = alive


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(peer_tier, "time", clock)
    return clock


class DeafTier(PeerTier):
    """A tier without sockets."""

    def __init__(self, sessions: dict[str, Any]) -> None:
        self._sessions = sessions
        self._asked, self._pulls, self._shunned = {}, {}, {}
        self._failed_req_ids = set()
        self._read_at = self._heard_at = 0.0
        self._is_due = threading.Event()

    def accept(self) -> None:
        self._accept_new_peers([])

    @property
    def sessions(self) -> dict[str, Any]:
        return self._sessions


@pytest.fixture
def tier(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> DeafTier:
    """Its peer never answers."""
    of_vllm: Any = P2PSecondaryTierManager
    monkeypatch.setattr(of_vllm, "lookup", lambda self, key, context: LookupResult.RETRY)
    monkeypatch.setattr(of_vllm, "get_finished_jobs", lambda self: [])
    return DeafTier({})


def found(tier: DeafTier) -> LookupResult:
    key: Any = b"block"
    request: Any = Request()
    return tier.lookup(key, request)


def test_a_peer_is_waited_for_until_its_messages_were_read_after_the_time_limit(
    tier: DeafTier, clock: Clock
) -> None:
    assert found(tier) is LookupResult.RETRY
    clock.now += 8 * ANSWER_S  # a long step of this engine
    assert found(tier) is LookupResult.RETRY
    tier.get_finished_jobs()
    assert found(tier) is LookupResult.MISS


def test_a_peer_that_connects_anew_is_accepted_before_its_old_connection_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = DeafTier({PEER: Session(alive=False)})
    known_then: list[bool] = []
    of_vllm: Any = P2PSecondaryTierManager
    monkeypatch.setattr(of_vllm, "_reap_dead_sessions", lambda self: tier.sessions.clear())
    monkeypatch.setattr(
        of_vllm, "_accept_new_peers", lambda self, new: known_then.append(PEER in tier.sessions)
    )
    tier.accept()
    assert known_then == [False]
