"""What an engine does after a pull whose source did not say that it has ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager
from vllm.v1.kv_offload.tiering.p2p.control.zmq import ZmqConnection
from vllm.v1.kv_offload.tiering.p2p.session import client
from vllm.v1.kv_offload.tiering.p2p.session import session as peer_session
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from deployments.engine.vllm.kv_tiers import host_tier_spec, peer_tier
from deployments.engine.vllm.kv_tiers.host_tier import PEER_TIER
from deployments.engine.vllm.kv_tiers.host_tier_spec import WITHHELD_S, HostTierManager

pytestmark = pytest.mark.real

CHUNKS, STEP = 8, ScheduleEndContext([], [])
KEYS = [make_offload_key(bytes([n]) * 32, 0) for n in range(2 * CHUNKS)]
PULLED, OTHERS = KEYS[:3], KEYS[CHUNKS:]


class Peers:
    """Has PULLED, and fails to send it."""

    tier_type, medium, locality, bp_detector = PEER_TIER, Medium.CPU, Locality.REMOTE, None
    cache_hit_source, block_size_bytes = CacheHitSource.P2P, 16

    def __init__(self, *, says_so: bool) -> None:
        self.unconfirmed: set[int] = set()
        self.chunks: set[int] = set()
        self._says_so = says_so
        self._ended: list[JobResult] = []

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.HIT if key in PULLED else LookupResult.MISS

    def submit_load(self, job: TransferJob) -> None:
        self.chunks = {int(chunk) for chunk in job.chunk_ids}
        self._ended.append(JobResult(job.job_id, success=False))
        if not self._says_so:
            self.unconfirmed.add(job.job_id)

    def get_finished_jobs(self) -> list[JobResult]:
        ended, self._ended = self._ended, []
        return ended

    def submit_store(self, job: TransferJob) -> None:
        self._ended.append(JobResult(job.job_id, success=True))

    def ignore(self, *_: Any) -> None:
        """A call that is nothing to a tier without blocks."""

    touch = serve_external_requests = on_schedule_end = drain_jobs = on_request_finished = ignore


class Clock:
    s = 0.0
    perf_counter = time.perf_counter

    def monotonic(self) -> float:
        return self.s


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the manager."""
    monkeypatch.setattr(host_tier_spec, "time", clock := Clock())
    return clock


def after_a_failed_pull(peers: Peers) -> HostTierManager:
    memory = SimpleNamespace(
        create_kv_memoryview=lambda: memoryview(bytearray(16 * CHUNKS)).cast("B", (CHUNKS, 16))
    )
    manager = HostTierManager(CPUPrimaryTierOffloadingManager(CHUNKS, memory), [peers])
    request = ReqContext("pulling")
    manager.on_new_request(request)
    for key in PULLED:
        assert manager.lookup(key, request) is LookupResult.HIT_PENDING
    for _ in range(2):  # submitted, and failed
        manager.on_schedule_end(STEP)
    assert len(peers.chunks) == len(PULLED)
    assert manager.primary_tier.lookup(PULLED[0], request) is LookupResult.MISS
    return manager


def stored(manager: HostTierManager, keys: Collection[OffloadKey]) -> set[int] | None:
    """The memory for these blocks; None: there is none."""
    request = ReqContext("storing")
    manager.on_new_request(request)
    found = manager.prepare_store(keys, request)
    if found is None:
        return None
    manager.complete_store(found.keys_to_store, request)
    return {int(chunk) for chunk in found.store_spec.chunk_ids}


def test_memory_where_a_source_may_still_write_is_not_used(now: Clock) -> None:
    manager = after_a_failed_pull(peers := Peers(says_so=False))
    assert stored(manager, OTHERS) is None
    fits = OTHERS[: CHUNKS - len(PULLED)]
    assert stored(manager, fits) == set(range(CHUNKS)) - peers.chunks


def test_it_is_used_again_after_some_time(now: Clock) -> None:
    manager = after_a_failed_pull(Peers(says_so=False))
    now.s = WITHHELD_S
    manager.on_schedule_end(STEP)
    assert stored(manager, OTHERS) == set(range(CHUNKS))


def test_it_is_not_used_after_a_reset_either(now: Clock) -> None:
    manager = after_a_failed_pull(peers := Peers(says_so=False))
    manager.reset_cache()
    fits = OTHERS[: CHUNKS - len(PULLED)]
    assert stored(manager, fits) == set(range(CHUNKS)) - peers.chunks
    manager.reset_cache()
    now.s = WITHHELD_S
    manager.on_schedule_end(STEP)
    assert stored(manager, OTHERS) == set(range(CHUNKS))


def test_memory_of_a_pull_that_the_source_has_ended_is_used_at_once(now: Clock) -> None:
    assert stored(after_a_failed_pull(Peers(says_so=True)), OTHERS) == set(range(CHUNKS))


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The pulls that are noted as failed without a message."""
    monkeypatch.setattr(peer_session, "ClientRole", client.ClientRole)
    noted: set[int] = set()
    peer_tier._note_unconfirmed(noted)
    return noted


def pulling(*job_ids: int) -> Any:
    side = peer_session.ClientRole("peer", lambda message: None)
    for job_id in job_ids:
        side.request_blocks(job_id, f"request {job_id}", [], [], send_ready=True)
    return side


def test_a_pull_fails_without_a_message_if_the_connection_is_lost_or_nothing_comes(
    noted: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pulling(1, 2).close()
    assert noted == {1, 2}
    monkeypatch.setattr(client, "_LOAD_TIMEOUT_S", 0.0)
    monkeypatch.setattr(client, "_ABORT_ACK_TIMEOUT_S", 0.0)
    side = pulling(3)
    assert not side.collect_results()
    assert [result.job_id for result in side.collect_results()] == [3]
    assert noted == {1, 2, 3}


def test_a_pull_that_the_peer_ends_or_confirms_to_abort_is_not_noted(noted: set[int]) -> None:
    side = pulling(1, 2, 3)
    side.on_transfer_done("request 1", True, 0)
    side.on_transfer_done("request 2", False, 0)
    side.on_abort_ack("request 3", 0)
    assert [result.success for result in side.collect_results()] == [True, False, False]
    assert not noted


@pytest.fixture
def sockets() -> Iterator[SimpleNamespace]:
    """An end of a connection, and the other one."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.reconnect_ivl = 0, -1
        with dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            yield SimpleNamespace(dealer=dealer, monitor=monitor, router=context.socket(zmq.ROUTER))
            dealer.disable_monitor()


def test_a_message_to_a_peer_that_is_gone_does_not_block(
    sockets: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ZmqConnection, "send", ZmqConnection.send)
    peer_tier._send_without_blocking()
    port = sockets.router.bind_to_random_port("tcp://127.0.0.1")
    sockets.dealer.connect(f"tcp://127.0.0.1:{port}")
    connection = ZmqConnection("peer", sockets)
    connection.send({"n": 1})
    assert sockets.router.poll(10_000)
    assert connection.alive
    sockets.router.close(linger=0)
    assert sockets.monitor.poll(10_000)
    for number in range(2, 100):
        if connection.alive:
            connection.send({"n": number})
    assert not connection.alive
