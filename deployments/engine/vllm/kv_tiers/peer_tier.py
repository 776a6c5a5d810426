"""vLLM's tier of other engines, which costs an idle engine nothing and never waits for a hung one.

vLLM imports this module in the engine's process. A request that names another engine pulls the
blocks of its prompt that the other one has in its host tier: the other engine writes them into this
one's host tier, over NIXL. A pull that fails costs a computation. Source:
vllm/v1/kv_offload/tiering/p2p of vLLM 0.32.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import zmq
from vllm.platforms import current_platform
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.p2p.control import zmq as zmq_transport
from vllm.v1.kv_offload.tiering.p2p.manager import P2PSecondaryTierManager, P2PSourceInfo
from vllm.v1.kv_offload.tiering.p2p.session import client
from vllm.v1.kv_offload.tiering.p2p.session import session as peer_session
from zmq.utils import z85

from deployments.engine.vllm.kv_tiers.host_tier import NAMES_KEY

logger = logging.getLogger("vllm.antefix")

# An engine that does not say within this time what it has is not waited for. It answers between
# two steps.
ANSWER_S = 1.0
# An engine that did not answer is not asked again for this time: each request would wait.
SHUN_S = 10.0
# A transfer that takes longer is aborted. vLLM's limit is 30 s. It then waits up to 10 s for the
# peer to confirm.
TRANSFER_S = 5.0
# An idle engine looks this often for peers that are gone.
LOOK_S = 1.0
# After a message the engine looks for more without waiting: several follow each other.
LINGER_S = 0.05
# NIXL's own thread looks this often for transfers on a CPU, where it would otherwise take a core.
PROGRESS_US = 1000
# The last messages of a closed connection are sent within this time.
GOODBYE_MS = 1000


class PeerTier(P2PSecondaryTierManager):  # type: ignore[misc]  # vLLM's types are not read
    """The blocks in the host tiers of other engines.

    With vLLM's class the engine always steps, so it never sleeps or drains. This one asks for a
    step when a peer has sent something (`attend`).

    `unconfirmed`: the pulls that have failed without a message from the peer. It may still complete
    them.
    """

    _control: Any
    _data: Any
    _failed_req_ids: set[str]
    _sessions: dict[str, Any]

    def __init__(self, *, host: str, address_file: str, kind: str, **more: Any) -> None:
        """`host`: the address that peers use. The tier writes it to `address_file`, with its port
        and the tokens that the host tier has room for. Engines of another `kind` have other blocks
        for the same tokens, and are refused."""
        if ipaddress.ip_address(host).is_loopback:
            os.environ.setdefault("UCX_NET_DEVICES", "lo")  # or UCX listens on all addresses
        if current_platform.is_cpu():
            _wait_between_looks()
        client._LOAD_TIMEOUT_S = TRANSFER_S
        _encrypt(os.environ.get(NAMES_KEY, ""))
        _close_without_blocking()
        _send_without_blocking()
        self.unconfirmed: set[int] = set()
        _note_unconfirmed(self.unconfirmed)
        port = _free_port(host)
        super().__init__(host=host, port=port, **more)
        self._data._config_fingerprint += kind
        # of each request, when it asked its peer or a transfer ended; of each transfer, its request
        self._asked: dict[str, float] = {}
        self._pulls: dict[int, str] = {}
        # of each peer that did not answer, until when it is not asked
        self._shunned: dict[str, float] = {}
        self._heard_at = self._read_at = 0.0
        self._is_due = threading.Event()
        self.router_fd = int(self._control._router.getsockopt(zmq.FD))
        spec = more["offloading_spec"]
        tokens = spec.num_chunks * spec.blocks_per_chunk * min(spec.tokens_per_block)
        Path(address_file).write_text(f"{host}:{port} {tokens}")

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Return whether the request's peer has a block; MISS if it does not answer in time."""
        source, now = req_context.get_state(P2PSourceInfo), time.monotonic()
        if source is None or now < self._shunned.get(source.peer_id, 0.0):
            return LookupResult.MISS
        result = super().lookup(key, req_context)
        if result is not LookupResult.RETRY:
            return result
        # a step of this engine may take longer, and it reads messages between two steps
        if self._read_at - self._asked.setdefault(source.kv_request_id, now) < ANSWER_S:
            return result
        self._shun(source, now)
        return LookupResult.MISS

    def _shun(self, source: P2PSourceInfo, now: float) -> None:
        """Stop waiting for a peer."""
        logger.warning(
            "failed to pull KV-cache blocks from %s: no answer within %g s; computing them, and not"
            " asking it again for %g s",
            source.peer_id,
            ANSWER_S,
            SHUN_S,
        )
        self._shunned = {peer: until for peer, until in self._shunned.items() if until > now}
        self._shunned[source.peer_id] = now + SHUN_S
        self._failed_req_ids.add(source.kv_request_id)
        session = self._sessions.get(source.peer_id)
        if session is not None and not session.ready:
            session._conn.mark_dead()  # the next request after that connects anew

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget a request."""
        if (source := req_context.get_state(P2PSourceInfo)) is not None:
            self._asked.pop(source.kv_request_id, None)
        super().on_request_finished(req_context)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Start to pull blocks into the host tier."""
        if (source := job_metadata.req_context.get_state(P2PSourceInfo)) is not None:
            self._pulls[job_metadata.job_id] = source.kv_request_id
        super().submit_load(job_metadata)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the transfers that have ended, and look for messages of peers."""
        now = time.monotonic()
        if self._is_due.is_set():
            self._is_due.clear()
            self._heard_at = now
        ended = [self._timed(result, now) for result in super().get_finished_jobs()]
        self._read_at = time.monotonic()
        return ended

    def _accept_new_peers(self, new_connections: Sequence[Any]) -> None:
        """Accept connections, also of peers whose previous connection has died: vLLM would refuse
        them, because it forgets the dead ones later."""
        self._reap_dead_sessions()
        super()._accept_new_peers(new_connections)

    def _timed(self, result: JobResult, now: float) -> JobResult:
        """Add the seconds since the request asked its peer, or since its previous transfer."""
        if (request_id := self._pulls.pop(result.job_id, None)) is None:
            return result
        began = self._asked.get(request_id, now)
        if request_id in self._asked:
            self._asked[request_id] = now
        return replace(result, transfer_time=now - began)

    def has_pending_work(self) -> bool:
        """Return whether the engine has to step for a peer."""
        return (
            self._is_due.is_set()
            or time.monotonic() - self._heard_at < LINGER_S
            or any(
                session.has_pending_work or session._server._serve_pending
                for session in self._sessions.values()
            )
        )

    def ring(self) -> None:
        """Ask for a step. Called from another thread."""
        self._is_due.set()

    @property
    def is_rung(self) -> bool:
        """Whether the engine has not stepped since `ring`."""
        return self._is_due.is_set()


def attend(core: Any) -> None:
    """Wake an engine for its peers. `core`: vLLM's EngineCoreProc, before its loop starts."""
    connector = core.scheduler.connector
    manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
    for tier in getattr(manager, "secondary_tiers", ()):
        if isinstance(tier, PeerTier):
            threading.Thread(
                target=_ring, args=(tier, core.input_queue), daemon=True, name="antefix-kv-peers"
            ).start()


def _ring(tier: PeerTier, core_inputs: Queue[Any]) -> None:
    """Ask for a step when a peer has sent something, and from time to time.

    The descriptor of a ZeroMQ socket may be watched by any thread. It stays readable until the
    engine has read the messages.
    """
    watched = select.poll()
    watched.register(tier.router_fd, select.POLLIN)
    while True:
        watched.poll(LOOK_S * 1000)
        tier.ring()
        core_inputs.put_nowait((EngineCoreRequestType.WAKEUP, None))
        while tier.is_rung:
            time.sleep(0.001)


def _encrypt(secret: str) -> None:
    """Encrypt the connections between engines with a key that only engines of the fleet have.

    vLLM's have neither encryption nor authentication: any client could read the cache and write
    into it. A client of CurveZMQ has to know the server's public key, which is not published
    here: all engines of a fleet have the same pair of keys.
    """
    private = z85.encode(hashlib.blake2b(secret.encode(), digest_size=32).digest())
    public, apply_heartbeat = zmq.curve_public(private), zmq_transport._apply_heartbeat

    def apply_keys(connection: zmq.Socket[bytes]) -> None:
        apply_heartbeat(connection)
        connection.curve_secretkey, connection.curve_publickey = private, public
        if connection.type == zmq.ROUTER:
            connection.curve_server = True
            # a peer may connect anew before the end of its old connection is noticed
            connection.router_handover = True
        else:
            connection.curve_serverkey = public
            connection.reconnect_ivl = -1  # vLLM takes a lost connection for a lost peer

    # it is called for each socket before it binds or connects
    zmq_transport._apply_heartbeat = apply_keys


def _close_without_blocking() -> None:
    """Close connections so that the others go on.

    ZeroMQ's thread writes the events of a connection for a reader, and waits for a reader that has
    closed before the connection. vLLM closes the reader first, so one peer that could not be
    reached ended all pulls of its engine.
    """
    close = zmq_transport.ZmqConnection.close

    def close_the_writer_first(self: Any) -> None:
        if not self._closed:
            self._sockets.dealer.disable_monitor()
            self._sockets.dealer.linger = GOODBYE_MS
        close(self)

    zmq_transport.ZmqConnection.close = close_the_writer_first


def _send_without_blocking() -> None:
    """Take a connection that takes no message for lost.

    A source that was stopped may send before it notices that its connection has ended. ZeroMQ would
    then wait for another one, and with it the engine.
    """
    send = zmq_transport.ZmqConnection.send

    def send_or_lose(self: Any, message: dict[str, Any]) -> None:
        self._sockets.dealer.sndtimeo = 0
        try:
            send(self, message)
        except zmq.Again:
            self.mark_dead()

    zmq_transport.ZmqConnection.send = send_or_lose


def _note_unconfirmed(jobs: set[int]) -> None:
    """Add the pulls to `jobs` that fail without a message from the peer."""

    class Client(client.ClientRole):  # type: ignore[misc]
        _completed_loads: list[client.LoadResult]

        def collect_results(self) -> list[client.LoadResult]:
            confirmed = {result.job_id for result in self._completed_loads}
            results: list[client.LoadResult] = super().collect_results()
            jobs.update(result.job_id for result in results if result.job_id not in confirmed)
            return results

        def close(self) -> client.ClientCloseResult:
            result = super().close()
            jobs.update(result.failed_jobs)
            return result

    peer_session.ClientRole = Client


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as free:
        return int(free.getsockname()[1])


def _wait_between_looks() -> None:
    """Let NIXL's thread sleep between two looks for transfers.

    NIXL's Python package sets this time to 0, so the thread takes a whole core. On a host with GPUs
    it has one to spare.
    """
    from nixl import _bindings

    class PatientConfig(_bindings.nixlAgentConfig):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, PROGRESS_US if name == "pthrDelay" else value)

    _bindings.nixlAgentConfig = PatientConfig
