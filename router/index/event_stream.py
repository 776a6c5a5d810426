"""One engine's KV events as they happen: every batch in order, or a report that some are lost.

vLLM publishes numbered batches (PUB socket) and sends past ones again on request (ROUTER). A gap in
the numbers is filled by a request. `lost` marks batches that the engine no longer has, a restarted
numbering, and a batch that cannot be decoded. A gap shows at the next batch. ZeroMQ reconnects by
itself; nothing here raises except cancellation. Source: ZmqEventPublisher in
vllm/distributed/kv_events.py of vLLM 0.32.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import zmq
import zmq.asyncio

from router.index import kv_events
from router.index.kv_events import KvEvent, UndecodableEvents

logger = logging.getLogger(__name__)

# How long the engine may take for each past batch: its publisher checks every 0.1 s.
REPLAY_TIMEOUT_S = 1.0
# Batches that wait here while the replica is busy; the publisher's default.
RECEIVE_HWM = 100_000


@dataclass(frozen=True)
class EventBatch:
    """The changes of one engine step. `lost`: events before it are lost."""

    events: list[KvEvent]
    lost: bool


class EventStream:
    """Reads one engine's events, for one reader, in one event loop."""

    def __init__(
        self, endpoint: str, replay_endpoint: str, replay_timeout_s: float = REPLAY_TIMEOUT_S
    ) -> None:
        self.replay_timeout_s = replay_timeout_s
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._context = zmq.asyncio.Context()
        self._expected = 0
        self._logged_undecodable = False
        self._listening: zmq.asyncio.Socket | None = None

    def listen(self) -> None:
        """Receive events from now on, for the first call of `batches`: otherwise they are known
        only after the next event."""
        self._listening = self._subscriber()

    def close(self) -> None:
        """End `batches`, also while it waits. May be called again."""
        self._context.destroy(linger=0)

    async def batches(self) -> AsyncGenerator[EventBatch, None]:
        """Yield all batches from the engine's first, until `close`."""
        if self._context.closed:
            return
        subscriber, self._listening = self._listening or self._subscriber(), None
        try:
            while not self._context.closed:
                frames = await subscriber.recv_multipart()
                async for batch in self._in_order(frames):
                    yield batch
        except (asyncio.CancelledError, zmq.ZMQError):
            # Closing a socket cancels a waiting receiver, which is not a cancellation of the task.
            task = asyncio.current_task()
            if not self._context.closed or (task is not None and task.cancelling()):
                raise
        finally:
            subscriber.close(linger=0)

    async def _in_order(self, frames: list[bytes]) -> AsyncIterator[EventBatch]:
        """Yield a message's batch, after missing earlier ones."""
        try:
            _, number_bytes, payload = frames
        except ValueError:
            yield self._undecodable(f"a message of {len(frames)} frames")
            return
        number = int.from_bytes(number_bytes, "big")
        restarted = number < self._expected
        first = 0 if restarted else self._expected
        self._expected = number + 1
        payloads = await self._replay(first, number) if first < number else []
        lost = restarted or len(payloads) < number - first
        if lost:
            logger.warning("lost KV events before batch %d", number - len(payloads))
        payloads.append(payload)
        for payload in payloads:
            yield self._decode(payload, lost)
            lost = False

    async def _replay(self, first: int, end: int) -> list[bytes]:
        """Request past batches from `first`. Return those up to `end` that leave no gap before
        it."""
        found: dict[int, bytes] = {}
        # A new socket each time, so that a late answer is dropped.
        with self._socket(zmq.DEALER, self._replay_endpoint) as replay:
            await replay.send_multipart([b"", first.to_bytes(8, "big")])
            try:
                while end - 1 not in found:
                    async with asyncio.timeout(self.replay_timeout_s):
                        _, _, number_bytes, payload = await replay.recv_multipart()
                    number = int.from_bytes(number_bytes, "big", signed=True)
                    if number < 0:  # the end of the engine's past batches
                        break
                    found[number] = payload
            except (TimeoutError, ValueError) as error:
                logger.warning("failed to fetch past KV events: %s", error)
        payloads = []
        while end > first and end - 1 in found:
            end -= 1
            payloads.append(found[end])
        return payloads[::-1]

    def _decode(self, payload: bytes, lost: bool) -> EventBatch:
        try:
            return EventBatch(kv_events.decode(payload), lost)
        except UndecodableEvents as error:
            return self._undecodable(error)

    def _undecodable(self, why: object) -> EventBatch:
        if not self._logged_undecodable:
            logger.warning("failed to decode KV events; treating them as lost: %s", why)
            self._logged_undecodable = True
        return EventBatch([], lost=True)

    def _subscriber(self) -> zmq.asyncio.Socket:
        subscriber = self._socket(zmq.SUB, self._endpoint)
        subscriber.subscribe(b"")
        return subscriber

    def _socket(self, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set_hwm(RECEIVE_HWM)
        socket.connect(endpoint)
        return socket
